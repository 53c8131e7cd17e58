"""The benchmarks of contractions, concatenations and pools run in small on the CPU, and measure what they say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.no_gpu import gpu_hidden

sys.path.insert(0, str(Path(__file__).parents[2]))
with gpu_hidden():
    from benchmarks import attention, concatenations, decode, function_cases, pools
    from benchmarks.record import read_rows

CPU = torch.device("cpu")


@pytest.mark.nightly
def test_decode_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    small = ["--layers", "1", "--width", "256", "--length", "64", "--device", "cpu", "--seconds", "0", "--batch", "2"]
    decode.main([*small, "--backends", "eager", "litz", "--kernels", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["weights"], row["backend"]) for row in rows] == [
        (weights, backend) for weights in decode.WEIGHTS for backend in ("eager", "litz")
    ]
    for row in rows:
        assert not row["problem"] and row["ms"] > 0 and 0 < row["share"] < 10 and row["kernel_count"] > 0
        assert 0 < row["error"] < 3e-2
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.nightly
def test_a_model_of_eight_layers_reads_what_the_table_says() -> None:
    with torch.device("meta"):
        model = decode.Decoder(decode.Sizes(), "bf16", torch.device("meta"))
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    cache = 2 * 8 * 2048 * 128
    assert model.bytes_read() == pytest.approx(8 * 2 * (layer + cache), rel=1e-3)
    assert sum(tensor.dtype == torch.bfloat16 for tensor in model.buffers()) == 8 * 11 + 1


@pytest.mark.nightly
@pytest.mark.parametrize(("weights", "bound"), [("int8", 0.005), ("int4", 0.08), ("float8", 0.02)])
def test_quantised_weights_are_close_to_the_full_ones(weights: str, bound: float) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(24, 256), torch.randn(3, 256).double()
    exact = x @ weight.double().t()
    got = decode.WEIGHTS[weights](weight, torch.float64)(x)
    assert float((got - exact).norm() / exact.norm()) < 2 * bound


@pytest.mark.nightly
def test_the_mask_hides_the_last_position() -> None:
    """Its key and value are large: a step without the mask would be far off."""
    torch.manual_seed(0)
    model = decode.Decoder(decode.Sizes(1, 256, 64, 1), "bf16", CPU).double()
    x, position = torch.randn(1, 1, 256).double(), torch.tensor([62])
    masked = model(x, position)
    model.positions[-1] = 0
    assert float((model(x, position) - masked).abs().max()) > 0.1 * float(masked.abs().max())


@pytest.mark.nightly
@pytest.mark.parametrize("name", attention.VARIANTS)
def test_the_float64_reference_is_flex_attention(name: str) -> None:
    """Eager's flex_attention, forward, and its gradients by the reference's own arithmetic against SDPA's."""
    case = attention.make_case(attention.VARIANTS[name], 16, 200, False, 400, 64, CPU)
    exact = attention.reference(case, rows=64)
    assert attention.distance(case.step(case.flex)(), exact) < 2e-2
    if case.variant.library:
        both = attention.make_case(attention.VARIANTS[name], 16, 200, True, 400, 64, CPU)
        assert attention.distance(both.step(both.sdpa)(), attention.reference(both, rows=64)) < 4e-2


@pytest.mark.nightly
def test_flops_are_those_of_unmasked_blocks() -> None:
    full, causal = (
        attention.make_case(attention.VARIANTS[name], 16, 512, False, 512, 64, CPU) for name in ("full", "causal")
    )
    assert full.flops == 4 * 512 * 512 * 4 * 16
    assert causal.flops == full.flops * 10 / 16  # 4 of 16 blocks on the diagonal, 6 below it


@pytest.mark.nightly
def test_attention_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    small = ["--dims", "32", "--lengths", "128", "--tokens", "128", "--width", "64", "--device", "cpu"]
    only = ["--only", "causal forward", "alibi n128 forward", "--backends", "sdpa", "litz", "--seconds", "0"]
    attention.main([*small, *only, "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert {row["variant"]: set(row["ms"]) for row in rows} == {"causal": {"sdpa", "litz"}, "alibi": {"litz"}}
    for row in rows:
        assert not row["problems"] and max(row["error"].values()) < 2e-2 and min(row["tflops"].values()) > 0
    printed = capsys.readouterr().out
    assert "litz against sdpa, forward" in printed and max(map(len, printed.splitlines()[1:])) <= 80


def test_concatenations_in_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A line for each case, with two figures of each peer; the second figure is of a step with its backward. Both
    are rows of --json."""
    case = replace(concatenations.CASES["geglu of a bias"], on_cpu=[(8, 64), (64,)])
    monkeypatch.setattr(concatenations, "CASES", {"small": case})
    file = tmp_path / "kernels.jsonl"
    concatenations.main(["--device", "cpu", "--seconds", "0", "--peers", "eager", "litz", "--json", str(file)])
    rows = read_rows(tmp_path)
    assert [row.case.partition(", ")[2] for row in rows] == ["forward, float32", "forward and backward, float32"]
    assert all(set(row.peers) == {"eager", "litz"} and row.peers["litz"]["wall_ms"] > 0 for row in rows)
    *_, line = lines = capsys.readouterr().out.splitlines()
    name, *figures = line.split()
    assert name == "small" and len(figures) == 4 and all(float(each) >= 0 for each in figures)
    assert max(map(len, lines)) <= 80
    x, bias = function_cases.arguments(case, CPU, torch.float32)
    step = function_cases.steps(case, (x, bias), True, ("eager",))["eager"]
    assert [gradient.shape for gradient in step()] == [x.shape, bias.shape]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["3 s2 p1", "stem 3 s2 p1 last"])
def test_pools_in_small(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    case = pools.CASES[name]
    small = replace(case, on_cpu=[(2, 3, 9, 9), *([(3,)] * (len(case.on_cpu) - 1))])
    monkeypatch.setattr(pools, "CASES", {"small": small})
    pools.main(["--device", "cpu", "--seconds", "0", "--peers", "eager", "litz"])
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith("small") and len(line.split()) == 5
    x = function_cases.arguments(small, CPU, torch.float32)[0]
    assert x.is_contiguous(memory_format=torch.channels_last) == case.channels_last and x.requires_grad
