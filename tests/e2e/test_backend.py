"""The backend as torch.compile's users see it: modes, options, training, dynamic shapes, threads, errors."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch

from litz import report as reports
from litz.errors import LitzError
from support.compare import DEVICES, check
from support.warm import run_warm

pytestmark = pytest.mark.parametrize("device", DEVICES)


def mlp(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)
    return torch.nn.Sequential(*layers).to(device)


@pytest.mark.ci_cases("default-cpu", "reduce-overhead-cpu", "max-autotune-cpu")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(device: str, mode: str) -> None:
    model = mlp(device)
    compiled = torch.compile(model, backend="litz", mode=mode)
    with torch.no_grad():
        for seed in range(4):  # warm-up, recording, replays
            torch.manual_seed(seed)
            x = torch.randn(6, 16, device=device)
            kept = compiled(x)
            torch.testing.assert_close(kept, model(x), rtol=1e-4, atol=1e-5)
            compiled(x + 1)
            torch.testing.assert_close(kept, model(x), rtol=1e-4, atol=1e-5)


def test_an_unknown_mode_is_refused(device: str) -> None:
    with pytest.raises(Exception, match="reduce-overhead"):
        torch.compile(lambda x: x + 1, backend="litz", mode="reduce-overheads")(torch.ones(2, device=device))


def test_an_unknown_option_suggests_the_nearest(device: str) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="litz", options={"fuson": False})
    with pytest.raises(Exception, match="fusion"):
        compiled(torch.ones(2, device=device))


def test_fusion_can_be_turned_off(device: str) -> None:
    f = lambda x: (x.sin() + 1).exp().sum(-1)
    x = torch.randn(8, 16, device=device)
    (fused,) = check(f, x)
    (apart,) = check(f, x, options={"fusion": False})
    assert fused.kernels_after == 1
    assert apart.kernels_after == apart.loops_before == 4


def test_debug_mode_verifies_every_stage(device: str) -> None:
    check(
        lambda x: torch.nn.functional.softmax(x.relu() + 1, -1),
        torch.randn(8, 16, device=device),
        options={"debug": True},
    )


@pytest.mark.ci_cases("adam-cpu")
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_training_steps_follow_eager(device: str, name: str) -> None:
    torch.manual_seed(1)
    data = [(torch.randn(6, 16, device=device), torch.randint(0, 8, (6,), device=device)) for _ in range(4)]
    losses = {}
    for kind in ("eager", "litz"):
        model = mlp(device)
        run = torch.compile(model, backend="litz") if kind == "litz" else model
        make = torch.optim.Adam if name == "adam" else torch.optim.SGD
        optimizer = make(model.parameters(), lr=1e-2)
        losses[kind] = []
        for x, y in data:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(run(x), y)
            loss.backward()
            optimizer.step()
            losses[kind].append(float(loss.detach()))
    assert losses["litz"] == pytest.approx(losses["eager"], rel=1e-4)


def test_saved_tensors_survive_the_next_forward(device: str) -> None:
    """Memory is reused between calls, but never what a later backward needs."""
    f = lambda x: (x.sin() * x.exp()).tanh()
    compiled = torch.compile(f, backend="litz")
    xs = [torch.randn(300, 300, device=device, requires_grad=True) for _ in range(3)]
    outs = [compiled(x) for x in xs]
    for x, out in zip(xs, outs, strict=True):
        (gradient,) = torch.autograd.grad(out.sum(), x)
        (expected,) = torch.autograd.grad(f(x).sum(), x)
        torch.testing.assert_close(gradient, expected)
        torch.testing.assert_close(out, f(x))


def test_outputs_that_the_caller_keeps_stay(device: str) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="litz")
    kept = [compiled(torch.full((512, 512), float(k), device=device)) for k in range(5)]
    views = [out[0] for out in kept]
    del kept
    more = [compiled(torch.full((512, 512), 100.0, device=device)) for _ in range(5)]
    assert [float(view[0]) for view in views] == [0, 2, 4, 6, 8]
    assert all(float(out[0, 0]) == 200 for out in more)


@pytest.mark.thorough
def test_a_new_batch_size_needs_no_new_compile(device: str) -> None:
    """As of a whole model in training (tests/e2e/test_model_zoo.py)."""
    model = mlp(device)
    with reports.collect() as collected, torch.no_grad():
        compiled = torch.compile(model, backend="litz", dynamic=True)
        for batch in (3, 7, 64, 129):
            x = torch.randn(batch, 16, device=device)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(collected) == 1


@pytest.mark.thorough
def test_automatic_dynamic_compiles_twice(device: str) -> None:
    """As of a softmax (tests/e2e/test_dynamic_shapes.py)."""
    model = mlp(device)
    with reports.collect() as collected, torch.no_grad():
        compiled = torch.compile(model, backend="litz")
        for batch in (3, 7, 64, 129):
            x = torch.randn(batch, 16, device=device)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(collected) == 2


@pytest.mark.nightly
def test_dynamic_training(device: str) -> None:
    model = mlp(device)
    compiled = torch.compile(model, backend="litz", dynamic=True)
    for batch in (3, 7, 65):
        x = torch.randn(batch, 16, device=device)
        compiled(x).square().sum().backward()
        ours = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().sum().backward()
        for got, p in zip(ours, model.parameters(), strict=True):
            torch.testing.assert_close(got, p.grad, rtol=1e-3, atol=1e-4)
        model.zero_grad()


def test_dropout_repeats_with_the_seed(device: str) -> None:
    compiled = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.25), backend="litz")
    x = torch.ones(200, 300, device=device)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(first, second)
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.01


def test_dropout_backward_uses_the_same_mask(device: str) -> None:
    compiled = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5) * 3, backend="litz")
    x = torch.ones(100, 100, device=device, requires_grad=True)
    out = compiled(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_a_result_that_nobody_reads_is_no_memory_to_reuse(device: str) -> None:
    """The positions that topk returns have as many bytes as what is allocated after them."""
    x, y = torch.randn(20, device=device), torch.randn(4, 4, device=device)
    check(lambda x, y: (torch.topk(x, 8)[0].sum(), (y.sin() @ y).cos() @ y), x, y)


@pytest.mark.thorough
def test_graph_breaks(device: str) -> None:
    """As in loops, and around writes (tests/e2e/test_subsystems.py)."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y + x if float(y.sum()) > 0 else y - x

    check(f, torch.rand(5, 5, device=device))


def test_autocast(device: str) -> None:
    model = mlp(device)
    x = torch.randn(6, 16, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = model(x)
        actual = torch.compile(model, backend="litz")(x)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.float(), expected.float(), rtol=3e-2, atol=3e-2)


@pytest.mark.thorough
def test_unbacked_sizes(device: str) -> None:
    """As of several such ops (tests/e2e/test_dynamic_shapes.py)."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sin() * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(f, backend="litz", fullgraph=True)
        for size in (5, 9):
            x = torch.randn(size, device=device)
            torch.testing.assert_close(compiled(x), f(x))


def test_several_threads(device: str) -> None:
    compiled = torch.compile(lambda x: (x.sin() + 1).sum(-1), backend="litz")
    compiled(torch.ones(300, 300, device=device))
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            x = torch.full((300, 300), float(number), device=device)
            if not torch.allclose(compiled(x), (x.sin() + 1).sum(-1), rtol=1e-4):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_compiler_says_what_to_install(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    if device == "cuda":
        pytest.skip("the C++ compiler is for the CPU")
    torch._dynamo.reset()
    options = {"cpp.compiler": "no-such-compiler-anywhere", "cache_dir": str(tmp_path)}
    compiled = torch.compile(lambda x: x.sin() + 1, backend="litz", options=options)
    with pytest.raises(Exception, match="install"):
        compiled(torch.ones(3))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="litz", options={**options, "fallback": "eager"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    assert any("eager" in str(w.message) for w in caught)
    assert issubclass(LitzError, Exception)


@pytest.mark.nightly
def test_a_damaged_cache_is_rebuilt(device: str, tmp_path: object) -> None:
    """Run, damage every file, run again in a new process: the result is right and the files are whole."""
    if device == "cuda":
        pytest.skip("the same cache serves both")
    script = (
        "import sys, torch\n"
        f"options = {{'cache_dir': {str(tmp_path)!r}}}\n"
        "f = torch.compile(lambda x: x.sin() + 1, backend='litz', options=options)\n"
        "x = torch.ones(5)\n"
        "assert torch.allclose(f(x), x.sin() + 1)\n"
    )
    assert run_warm(["-c", script]).returncode == 0
    damaged = [p for p in tmp_path.rglob("*") if p.suffix in (".so", ".cpp", ".json", ".py")]
    assert damaged
    for path in damaged:
        path.write_bytes(b"garbage")
    assert run_warm(["-c", script]).returncode == 0
