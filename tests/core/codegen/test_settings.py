"""Settings of Triton kernels: whatever they are, a kernel computes the same and compiles for sm_90."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("triton")

from litz.target import target_named
from litz.targets.triton.codegen import TritonCodegen
from litz.targets.triton.finish import choose_tilings
from litz.targets.triton.settings import near, settings_of, with_settings
from litz.tiles.shape import Tiling
from litz_plugins import TunableCodegen
from support.interpreted import asked_for, interpreted, mostly
from support.settings_cases import far, text_of
from support.triton_cases import CASES, interpreted_names
from support.triton_compiled import compile_only

pytestmark = pytest.mark.xdist_group("triton settings")

H100 = target_named("H100")
SHOWN = (
    *("bias", "transposed-float32", "segments-of-columns", "scatter-result", "inplace", "embedding", "guarded-gather"),
    *(
        "softmax-long-bf16",
        "layer-norm-1024",
        "reduce-two-long",
        "reduce-long-float32",
        "reduce-row-bfloat16",
        "welford-combine",
    ),
    *(
        "finish-blocks-of-columns",
        "finish-writes-what-it-reads",
        "rows-alike-pitch",
        "rows-norm-in-passes",
        "scan-long",
    ),
)
"""Of each kind of kernel one."""
ALL = [name for name in interpreted_names() if not name.startswith(("ops-", "written-", "scatter-"))] + [
    "scatter-result"
]
THOROUGH = [name for name in ALL if name not in SHOWN]


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case that is asked for "" or what went wrong with which settings."""
    return interpreted("support.settings_cases", asked_for(request, __name__))


@pytest.mark.parametrize("name", mostly(ALL, THOROUGH))
def test_any_settings_give_the_same_results(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.fixture(scope="module")
def compiled() -> Mapping[str, Any]:
    """The last setting of some cases, which is the oddest, compiled: the stages, or what went wrong."""
    others = {
        f"{name} {text_of(other.settings)}": other for name in SHOWN for other in list(far(CASES[name](), 2))[-1:]
    }

    def one(name: str) -> Any:
        try:
            return compile_only(others[name].source)
        except Exception as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(others, pool.map(one, others), strict=True))


@pytest.mark.nightly
def test_settings_compile_for_hopper(compiled: Mapping[str, Any]) -> None:
    assert len(compiled) >= len(SHOWN) - 2
    assert {name: found for name, found in compiled.items() if isinstance(found, Exception)} == {}


def _tiling(name: str) -> Tiling:
    return choose_tilings(CASES[name]().plan, H100)[0]


@pytest.mark.parametrize("name", SHOWN)
def test_the_settings_of_a_tiling_give_that_tiling(name: str) -> None:
    tiling = _tiling(name)
    assert with_settings(tiling, settings_of(tiling)) == tiling
    plan = CASES[name]().plan
    for settings in near(tiling, plan):
        other = with_settings(tiling, settings)
        assert settings_of(other) == settings, "they are complete"
        assert other != tiling


def test_a_step_changes_elements_or_threads_by_two() -> None:
    tiling, plan = _tiling("bias"), CASES["bias"]().plan
    now = settings_of(tiling)
    found = list(near(tiling, plan))
    assert 1 <= len(found) <= 4 * len(now)
    for each in found:
        ratios = {name: each[name] / now[name] for name in now if each[name] != now[name]}
        assert set(ratios.values()) <= {2.0, 0.5}


def test_rows_may_be_held_or_walked() -> None:
    tiling, plan = _tiling("layer-norm-1024"), CASES["layer-norm-1024"]().plan
    assert settings_of(tiling)["held"] == 1
    (walked,) = [each for each in near(tiling, plan) if not each["held"]]
    assert walked["r"] < 1024 and not with_settings(tiling, walked).persistent
    tiling = with_settings(tiling, walked)
    (held,) = [each for each in near(tiling, plan) if each["held"]]
    assert held["r"] == 1024 and with_settings(tiling, held).persistent
    assert isinstance(TritonCodegen(), TunableCodegen)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("bias", {"x": 3}, "powers of two"),
        ("bias", {"x": 0}, "powers of two"),
        ("bias", {"warps": 64}, "at most"),
        ("bias", {"r": 16}, "no settings of this kernel: r"),
        ("bias", {"colour": 1}, "no settings of this kernel: colour"),
        ("layer-norm-1024", {"held": 2}, "held is 0 or 1"),
        ("layer-norm-1024", {"held": 1, "r": 16}, "in one block"),
        ("layer-norm-1024", {"held": 0, "r": 1024, "stages": 9}, "stages"),
    ],
)
def test_what_no_kernel_can_have_is_an_error(name: str, settings: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        with_settings(_tiling(name), settings)
