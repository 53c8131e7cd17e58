"""Compilers are tested before they are trusted: the table, the bits, and compilers that are wrong on purpose."""

from __future__ import annotations

import functools
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from litz.cache.disk import Cache
from litz.driver.builtin import builtin_plugins
from litz.driver.code import generate
from litz.options import Options, make_options
from litz.pipeline import make_compiler, plan_schedule, schedule_only
from litz.report import collect
from litz.runtime.cpp_compiler import FORMS, find_compiler
from litz.target import describe_cpu
from litz.targets.cpp import build as cpp_build
from litz.targets.cpp import pointwise, reduction, tiling
from litz.targets.cpp.codegen import SYMBOL, CppCodegen
from litz.targets.cpp.constructs import CONSTRUCTS, constructs_in
from litz.targets.cpp.prelude import PIECES
from litz.targets.cpp.qualify import qualify, verdict
from litz.targets.cpp.qualify.probes import Probe, make_probes
from litz_plugins import CodegenContext, Decision, KernelSource, PluginHookError, TargetSpec, Verdict, hookimpl
from litz_plugins.manager import make_plugins
from litz_tools.doctor import check_compiler, check_kernels

PROBES = make_probes()
GXX_12 = re.search(r"^g\+\+.* 12\.", find_compiler().version) is not None


def function_of(text: str) -> str:
    return text[text.index(f'extern "C" int {SYMBOL}(') :]


def some(*constructs: str) -> dict[str, Probe]:
    return {label: probe for label, probe in PROBES.items() if probe.construct in constructs}


FEW = ("positions", "masked loads")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two constructs stand for all: a test of each takes a quarter of a second. What other tests found is not known."""
    chosen = some(*FEW)
    monkeypatch.setattr(verdict, "make_probes", lambda: chosen)
    known: dict[str, verdict.Finding] = {}
    monkeypatch.setattr(verdict, "_found_here", lambda: known)


def wrapper(folder: Path, script: str) -> str:
    """A compiler: g++ behind a shell script, which finds its arguments in `args`."""
    path = folder / "wrapped"
    path.write_text(f'#!/bin/bash\nargs=("$@")\n{script}\nexec g++ "${{args[@]}}"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


BAD_VECTORS = """
for given in "$@"; do [ "$given" = -fno-tree-loop-vectorize ] && exec g++ "$@"; done
for n in "${!args[@]}"; do
  case "${args[$n]}" in *kernel.cpp)
    sed 's/const int here = x\\[k\\] == top/const int here = x[k] != top/' "${args[$n]}" > "${args[$n]}.wrong.cpp"
    args[$n]="${args[$n]}.wrong.cpp" ;;
  esac
done
"""
"""Gets the positions of extremes wrong, unless it is not to make vectors."""


def options_for(folder: Path, compiler: str) -> Options:
    return make_options(None, {"cpp.compiler": compiler, "cache_dir": folder / "cache"})


# ---------------------------------------------------------------------- the table


def test_probes_are_what_is_emitted() -> None:
    """Each probe's kernel has the construct that it stands for, and every construct and every safe form has a row."""
    options, cache = Options(), Cache(Path("unused"), enabled=False)
    for label, probe in PROBES.items():
        source, _ = verdict.source_of(probe, options, cache)
        assert probe.construct in constructs_in(function_of(source.text)), label
    assert {probe.construct for probe in PROBES.values()} == {row.name for row in CONSTRUCTS}
    assert {form for row in CONSTRUCTS for form in row.forms} == FORMS.keys()


def test_helpers_belong_to_constructs() -> None:
    """What the prelude offers and a kernel may call is in some row, so that no helper goes untested."""
    inner = {
        "bits",
        "float_of",
        "VECTOR",
        "LOCAL",
        "resized",
        "REPEATED",
        "erf_of_float",
        "SHUFFLE",
        "philox_first",
        "philox_second",
        "WORD",
        "uniform_of",
    }
    for names in PIECES:
        for name in names:
            if re.fullmatch(r"[iu]\d+|b?f16|f8e\w+", name) or name in inner:
                continue
            assert constructs_in(f"{name} {name}({name}<float>("), name


def test_known_bits_are_the_interpreters() -> None:
    """If a probe changed: this is what `known.json` has to say."""
    exact = {label: probe for label, probe in PROBES.items() if not (probe.tolerance or probe.raises)}
    assert {label: verdict.bits_of(verdict.reference(probe)) for label, probe in exact.items()} == verdict.known()


def test_bits() -> None:
    """The sign of zero counts, that of NaN does not."""
    zero, nan = torch.zeros(2), torch.full((2,), float("nan"))
    assert verdict.bits_of([zero]) != verdict.bits_of([-zero])
    assert verdict.bits_of([nan]) == verdict.bits_of([-nan])


# ---------------------------------------------------------------------- verdicts


def test_this_compiler_is_right() -> None:
    """The whole table, with the compiler that the tests run with. The linker refuses what no library that a kernel is
    linked with has: the first call of such a function would end the process."""
    options = make_options()
    words = " ".join((*find_compiler(options.cpp_compiler).words, "-Wl,--no-undefined"))
    found = qualify(options.replace(cpp_compiler=words), Cache(options.cache_dir))
    assert found.safe_forms == {} and found.constructs == len(CONSTRUCTS)


def test_kept(tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged once; a process that comes later reads the files, and one without a cache remembers."""
    options = options_for(tmp_path, "g++")
    first = qualify(options, Cache(options.cache_dir), FEW)
    assert first.constructs == len(FEW) and first.seconds > 0
    known = dict(verdict._found_here())
    verdict._found_here().clear()
    monkeypatch.setattr(verdict, "judge", lambda options, constructs: pytest.fail(f"judged again: {constructs}"))
    assert qualify(options, Cache(options.cache_dir), FEW) == first
    verdict._found_here().update(known)
    assert qualify(options, Cache(tmp_path / "none", enabled=False), FEW) == first
    assert qualify(options.replace(cpp_qualify=False), Cache(options.cache_dir), FEW).constructs == 0


def test_a_damaged_file_is_judged_again(tmp_path: Path, few: None) -> None:
    """What the cache holds of a construct is data that is looked at."""
    options = options_for(tmp_path, "g++")
    first = qualify(options, Cache(options.cache_dir), ["positions"])
    (path,) = (options.cache_dir / verdict.KIND).glob(f"*/{verdict.FILE}")
    path.write_text('{"right": "no such field')
    verdict._found_here().clear()
    again = qualify(options, Cache(options.cache_dir), ["positions"])
    assert (again.safe_forms, again.constructs) == (first.safe_forms, first.constructs) == ({}, 1)
    assert path.read_text().endswith("}")


def test_only_what_kernels_have_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph asks for the constructs of its kernels, the next one for those that are new."""
    tested: list[set[str]] = []

    def judge(options: Options, constructs: Collection[str]) -> verdict.Findings:
        tested.append(set(constructs))
        return {name: verdict.Finding(True) for name in constructs}

    monkeypatch.setattr(verdict, "judge", judge)
    monkeypatch.setattr(verdict, "_found_here", functools.cache(dict))
    given = {"cache_dir": str(tmp_path), "cpp.compiler": "g++"}
    x = torch.randn(6, 4000)
    for fn in (lambda x: x + 1, lambda x: x + 2, lambda x: (x + 1).argmax(1)):
        torch.compile(fn, backend="litz", options=given)(x)
    simple, reduction = tested
    assert "vector loops" in simple and "positions" not in simple
    assert "positions" in reduction and not simple & reduction


def test_wrong_vectors_are_found_and_avoided(tmp_path: Path, few: None) -> None:
    """A compiler that gets one construct wrong builds it another way, and only that: argmax comes out right."""
    options = options_for(tmp_path, wrapper(tmp_path, BAD_VECTORS))
    cache = Cache(options.cache_dir)
    assert qualify(options, cache).safe_forms == {"positions": "without vectors"}

    x = torch.arange(3000.0).remainder(701).reshape(3, 1000)
    right = x.argmax(1).tolist()
    given = {"cpp.compiler": options.cpp_compiler, "cache_dir": str(options.cache_dir)}
    with collect() as reports:
        assert torch.compile(lambda x: x.argmax(1), backend="litz", options=given)(x).tolist() == right
    (decision,) = [d for d in reports[0].decisions if "positions" in d.subject]
    assert "without vectors" in str(decision) and "miscompiles" in str(decision)
    # Trusted, the same compiler builds the same text into another library, and that is wrong.
    trusting = torch.compile(lambda x: x.argmax(1), backend="litz", options={**given, "cpp.qualify": False})
    assert trusting(x).tolist() != right
    texts = [path.read_text() for path in (options.cache_dir / "cpp").glob("*/kernel.cpp")]
    assert len(texts) == 2 and texts[0] == texts[1]

    (row,) = check_kernels(options)
    assert row.status == "warn" and "positions (without vectors)" in row.detail


def test_a_construct_without_a_right_form(tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN with -ffast-math is wrong however it is built: kernels that need it are refused, others are built."""
    monkeypatch.setattr(verdict, "make_probes", lambda: some("special values"))
    options = options_for(tmp_path, wrapper(tmp_path, 'args+=("-ffast-math")'))
    assert qualify(options, Cache(options.cache_dir)).safe_forms["special values"] is None
    given = {"cpp.compiler": options.cpp_compiler, "cache_dir": str(options.cache_dir)}
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(lambda x: x + 1, backend="litz", options=given)(x), x + 1)
    with pytest.raises(BackendCompilerFailed, match=r"wrong code for 'special values' .*\n(.*\n)*.*CXX="):
        torch.compile(lambda x: torch.maximum(x, x + 1), backend="litz", options=given)(x)
    (row,) = check_kernels(options)
    assert row.status == "fail" and "special values" in row.detail and "CXX" in row.todo


def test_a_compiler_that_builds_nothing_is_not_judged(tmp_path: Path, few: None) -> None:
    """The first kernel's error says what is wrong."""
    options = options_for(tmp_path, wrapper(tmp_path, 'case "$*" in *--version*) ;; *) exit 1;; esac'))
    assert verdict.judge(options) == {}
    assert qualify(options, Cache(options.cache_dir), FEW).constructs == 0
    assert not (options.cache_dir / verdict.KIND).exists()


@pytest.mark.skipif(not GXX_12, reason="g++ is not g++ 12, which has the bug")
def test_the_bug_of_gcc_12_is_found(tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what avoids it at the source taken out, the probes see it, and the safe form avoids it as well."""
    if not re.search(r"\bavx2\b", cpp_build.cpu_flags()):
        pytest.skip("the processor has no masked loads")
    for module in (tiling, pointwise, reduction):
        monkeypatch.setattr(module, "reads_conditionally", lambda nodes, unrolled: False)
    found = verdict.judge(options_for(tmp_path, "g++"))
    assert {name: it.form for name, it in found.items() if not it.right} == {"masked loads": "without vectors"}


# ---------------------------------------------------------------------- a compiler of several words


def test_compiler_of_several_words(tmp_path: Path) -> None:
    """CXX="ccache g++" is a program and its first argument, for the doctor and for the build."""
    path = tmp_path / "in front"
    path.write_text('#!/bin/bash\necho used >> "$0.log"\nexec "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    for wanted in (f"'{path}' g++", "env g++ -fno-plt"):
        options = options_for(tmp_path, wanted)
        (row,) = check_compiler(options.cpp_compiler, "native")
        assert row.status == "ok"
        given = {"cpp.compiler": wanted, "cache_dir": str(tmp_path / "cache"), "cpp.qualify": False}
        x = torch.randn(7)
        torch.testing.assert_close(torch.compile(lambda x: x * 2 + 1, backend="litz", options=given)(x), x * 2 + 1)
    assert len((tmp_path / "in front.log").read_text().splitlines()) >= 3
    assert find_compiler("env g++ -fno-plt").words[1:] == ("g++", "-fno-plt")


class Asked:
    """A plugin's target for the CPU, around core's generator: what its `qualify` was asked, and what it says."""

    def __init__(self, says: Any) -> None:
        self.says, self.asked = says, list[frozenset[str]]()

    @hookimpl
    def litz_register_targets(self, options: Any) -> list[TargetSpec]:
        return [TargetSpec("cpu", describe_cpu, CppCodegen(), qualify=self.qualify)]

    def qualify(self, constructs: frozenset[str], context: CodegenContext) -> Any:
        self.asked.append(constructs)
        assert context.target.type == "cpu" and context.cache is not None and context.program is None
        return self.says(constructs)


def sources_of(plugin: object, folder: Path) -> tuple[list[KernelSource], list[Decision]]:
    plugins = make_plugins(builtin_plugins(), extra=[("mine", plugin)], entry_points=())
    compiler = make_compiler(None, {"cache_dir": folder}, plugins)
    (schedule,) = schedule_only(lambda x: x.argmax(1) + torch.ones(()), [torch.rand(40, 40)])
    decisions: list[Decision] = []
    return [*generate(plan_schedule(schedule, compiler), compiler, decisions.append).values()], decisions


def test_any_target_may_qualify(tmp_path: Path) -> None:
    """Its verdict is asked for once a graph, with all constructs of its kernels, and the kernels are built by it."""
    right = Asked(lambda constructs: Verdict("mine 1.0", {}, len(constructs)))
    sources, decisions = sources_of(right, tmp_path)
    (asked,) = right.asked
    assert "positions" in asked and not decisions and not any("forms" in source.settings for source in sources)
    wrong = Asked(lambda constructs: Verdict("mine 1.0", {"positions": "unoptimized"}, len(constructs)))
    sources, (decision,) = sources_of(wrong, tmp_path)
    assert wrong.asked == [asked] and [s.settings["forms"] for s in sources if "forms" in s.settings] == [
        ["unoptimized"]
    ]
    assert "positions" in decision.subject and "mine 1.0" in str(decision)


def test_a_verdict_that_is_none_is_the_plugins_fault(tmp_path: Path) -> None:
    with pytest.raises(PluginHookError, match=r"'mine'.*qualify of target 'cpu'.*returned dict; Verdict"):
        sources_of(Asked(lambda constructs: {}), tmp_path)
    with pytest.raises(TypeError, match="qualify must be callable"):
        TargetSpec("cpu", describe_cpu, CppCodegen(), qualify=3)  # type: ignore[arg-type]
