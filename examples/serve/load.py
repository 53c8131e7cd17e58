"""Measures servers: the time from a process's start to its first token, and tokens a second of 1, 8 and 32 clients.

    python -m examples.serve.load --peers eager artifact litz inductor --model tiny --json /tmp/load.json
    python -m examples.serve.load --in-process --peers eager artifact --model 1b --device cuda

Options that are not listed go to the server. Each peer has a process, and empty caches, of its own:

    cold s      the first token of a process with empty caches; of an artifact the seconds of `build`
    warm s      the first token of the next process, on which the rest is measured
    cpu s       what that process had taken of the processors by then
    tok/s       new tokens a second, all clients together, each with one request at a time
    ttft        milliseconds until a request's first token: the median, and the slowest of twenty
    equal       greedy tokens that are those of the first peer, for one prompt

With --in-process there is no HTTP, and no aiohttp is needed: the clients ask the engine itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Complete = Callable[[list[int], int], Awaitable[tuple[float, list[int]]]]
"""Takes a prompt, and how many new tokens; returns the seconds until the first, and all of them."""
PEERS = ("eager", "artifact", "litz", "inductor")
CACHES = ("LITZ_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
HERE = __spec__.name.rpartition(".")[0] if __spec__ else "examples.serve"


def processor_seconds(pid: int) -> float:
    """Returns what a process has taken so far, with those that it has started and awaited."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def measure(complete: Complete, args: argparse.Namespace, pid: int) -> dict[str, Any]:
    """Returns the first answer, when its first token came, and the figures of each number of clients. pid: of whoever
    answers."""
    numbers = random.Random(0)
    prompt = [numbers.randrange(256) for _ in range(args.prompt)]
    asked = time.time()
    first, _ = await complete(prompt, 1)
    found: dict[str, Any] = {"start_s": asked + first - args.began, "start_cpu_s": processor_seconds(pid)}
    found |= {"tokens": (await complete(prompt, args.tokens))[1], "clients": {}}
    for clients in args.clients:
        left = [[numbers.randrange(256) for _ in range(args.prompt)] for _ in range(clients * args.rounds)]
        firsts, count, begin = list[float](), 0, time.perf_counter()

        async def client(left: list[list[int]] = left, firsts: list[float] = firsts) -> int:
            made = 0
            while left:
                first, tokens = await complete(left.pop(), args.tokens)
                firsts.append(first)
                made += len(tokens)
            return made

        count = sum(await asyncio.gather(*(client() for _ in range(clients))))
        seconds = time.perf_counter() - begin
        firsts.sort()
        slowest = [1e3 * firsts[len(firsts) // 2], 1e3 * firsts[len(firsts) * 19 // 20]]
        row = {"requests": len(firsts), "tokens": count, "tokens_per_s": count / seconds, "ttft_ms": slowest}
        found["clients"][clients] = row
    return found


async def over_http(url: str, args: argparse.Namespace, pid: int) -> dict[str, Any]:
    """Measures a server that has just started."""
    import aiohttp

    limits = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(600)) as session:

        async def complete(prompt: list[int], most: int) -> tuple[float, list[int]]:
            begin, first, tokens = time.perf_counter(), 0.0, list[int]()
            body = {"prompt": prompt, "max_tokens": most, "stream": True}
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {await answer.text()}")
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        first = first or time.perf_counter() - begin
                        tokens += json.loads(line[6:])["choices"][0]["token_ids"]
            return first, tokens

        return await measure(complete, args, pid)


async def in_process(engine: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Measures an engine of this process."""
    from .engine import Request, dispatch

    loop = asyncio.get_running_loop()
    engine.deliver = lambda events: loop.call_soon_threadsafe(dispatch, events)
    thread = threading.Thread(target=engine.run, name="engine", daemon=True)
    thread.start()

    async def complete(prompt: list[int], most: int) -> tuple[float, list[int]]:
        events: asyncio.Queue[tuple[int | None, str | None]] = asyncio.Queue()
        request = Request(tuple(prompt), most, lambda token, reason: events.put_nowait((token, reason)))
        begin = time.perf_counter()
        engine.submit(request)
        await events.get()
        first = time.perf_counter() - begin
        while (event := await events.get())[1] is None:
            pass
        if event[1] != "length":
            raise RuntimeError(f"a request ended: {event[1]}; {engine.state}")
        return first, request.made

    found = await measure(complete, args, os.getpid())
    engine.close()
    await asyncio.to_thread(thread.join)
    return found


def in_child(args: argparse.Namespace, rest: list[str]) -> None:
    """Prints what it measures of one engine, as JSON."""
    from .start import add_engine_arguments, make_engine

    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    print(json.dumps(asyncio.run(in_process(make_engine(parser.parse_args(rest)), args))))


def measured(args: argparse.Namespace, options: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Measures a peer in a new process. Errors: SystemExit with what the process wrote."""
    args.began = time.time()
    if args.in_process:
        own = [f"--{name}={getattr(args, name)}" for name in ("prompt", "tokens", "rounds", "began")]
        own += ["--clients", *map(str, args.clients)]
        command = [sys.executable, "-m", f"{HERE}.load", "--child", *own, *options]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"status {done.returncode}: {' '.join(command)}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    command = [sys.executable, "-m", f"{HERE}.server", "--port", "0", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        try:
            if not line.startswith("ready: "):
                raise SystemExit(f"the server did not start: {' '.join(command)}")
            found = asyncio.run(over_http(line.split()[1], args, server.pid))
        finally:
            server.send_signal(signal.SIGTERM)
        if server.wait(60) != 0:
            raise SystemExit(f"the server ended with status {server.returncode}")
    return found


def measure_peer(peer: str, args: argparse.Namespace, rest: list[str]) -> dict[str, Any]:
    """Returns a row of the table: a cold start, unless there is none, then a warm one and its load."""
    with caches() as (environment, folder):
        cold, graphs = None, args.graphs or ("none" if peer == "eager" else "engine")
        options = ["--graphs", graphs, "--mode", args.mode]
        if peer == "artifact":
            begin = time.perf_counter()
            command = [sys.executable, "-m", f"{HERE}.build", folder, "--mode", args.mode, *rest]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            cold, options = time.perf_counter() - begin, [*options, "--artifact", folder]
        else:
            options += ["--source", peer, *rest]
            if peer != "eager":
                quick = argparse.Namespace(**{**vars(args), "clients": [], "tokens": 1})
                cold = measured(quick, options, environment)["start_s"]
        return {"peer": peer, "graphs": graphs, "cold_s": cold, **measured(args, options, environment)}


@contextmanager
def caches() -> Iterator[tuple[dict[str, str], str]]:
    """Empty caches, as an environment, and an empty folder beside them."""
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        yield {**os.environ, **{name: str(Path(folder, name)) for name in CACHES}}, str(Path(folder, "artifact"))


def line(row: dict[str, Any], expected: list[int]) -> str:
    """A row of the table."""
    cold = f"{row['cold_s']:8.1f}" if row["cold_s"] is not None else f"{'':8}"
    speeds = "".join(f"{one['tokens_per_s']:9.0f}" for one in row["clients"].values())
    times = "".join("{:8.0f}{:6.0f}".format(*one["ttft_ms"]) for one in row["clients"].values())
    equal = sum(a == b for a, b in zip(row["tokens"], expected, strict=True))
    start = f"{cold}{row['start_s']:8.1f}{row['start_cpu_s']:7.1f}"
    return f"{row['peer']:10}{row['graphs']:9}{start}{speeds}{times}{equal:7}/{len(expected)}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.serve.load", description=__doc__.splitlines()[0])
    parser.add_argument("--peers", "--peer", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3, help="requests of each client")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of each request")
    parser.add_argument("--graphs", help="who records CUDA graphs; default: nobody for eager, the engine for others")
    parser.add_argument("--mode", default="default", help="the compiler's")
    parser.add_argument("--in-process", action="store_true", help="no HTTP")
    parser.add_argument("--json", type=Path, help="write the figures to this file, after each peer")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args(argv)
    if args.child:
        in_child(args, ["--graphs", args.graphs or "engine", "--mode", args.mode, *rest])
        return
    names = [f"{'tok/s ' + str(n):>9}" for n in args.clients] + [f"{'ttft ' + str(n):>14}" for n in args.clients]
    print(f"{'peer':10}{'graphs':9}{'cold s':>8}{'warm s':>8}{'cpu s':>7}{''.join(names)}   equal")
    rows: list[dict[str, Any]] = []
    for peer in args.peers:
        rows.append(measure_peer(peer, args, rest))
        print(line(rows[-1], rows[0]["tokens"]), flush=True)
        if args.json:
            args.json.write_text(json.dumps({"options": rest, "rows": rows}, indent=1))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers, too
    main()
