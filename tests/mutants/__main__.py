"""`python -m tests.mutants [NAME ...]`: which mutants do their tests see? The status is 1 if one survives."""

from __future__ import annotations

import argparse
import sys

from .rows import faults_of, read_mutants
from .run import Broken, Result, run_mutants


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants, or lists of them such as 000; all if none")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--jobs", type=int, default=1, help="mutants to run at a time (default: 1)")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutant first")
    asked = parser.parse_args(arguments)
    mutants = read_mutants()
    if unknown := set(asked.names) - {m.name for m in mutants} - {m.topic for m in mutants}:
        parser.error(f"no mutant and no list is called {', '.join(sorted(unknown))}")
    mutants = [m for m in mutants if not asked.names or {m.name, m.topic} & set(asked.names)]
    if asked.list:
        for mutant in mutants:
            print(f"{mutant.topic:<12} {mutant.name:<44} {mutant.why}")
        return 0
    if faults := [f"{mutant.name}: {fault}" for mutant in mutants for fault in faults_of(mutant)]:
        print("\n".join(faults), file=sys.stderr)
        return 2
    results: list[Result] = []
    try:
        for result in run_mutants(mutants, asked.jobs, baseline=not asked.no_baseline):
            results.append(result)
            print(_line(result), flush=True)
    except Broken as error:
        print(error, file=sys.stderr)
        return 2
    survivors = [result for result in results if not result.killed]
    print(f"\n{len(results) - len(survivors)} of {len(results)} mutants killed")
    for result in survivors:
        print(f"\n{result.mutant.name} ({result.mutant.file}): {result.note or result.mutant.why}")
        for test in result.blind:
            print(f"    not seen by {test}")
    return 1 if survivors else 0


def _line(result: Result) -> str:
    how = "killed" if result.killed else "NOT RUN" if result.note else "SURVIVES"
    return f"{how:<9} {result.seconds:6.1f} s  {result.mutant.topic:<12} {result.mutant.name}"


sys.exit(main())
