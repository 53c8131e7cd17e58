"""`litz.standalone_compile`: graphs without dynamo; artifacts in this process, in another one, and from other hands."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import litz
from litz import report
from litz.origins import sources
from litz_aot import container, cpp_kernels, records
from litz_aot.artifact import MANIFEST
from litz_aot.errors import ArtifactError, ArtifactInputError
from support.warm import run_warm

Tensors = Sequence[torch.Tensor]


def captured(fn: Callable[..., Any], args: Tensors, dynamic: bool = False) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The graph that dynamo makes of a function, and its inputs."""
    found: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def keep(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append((gm, list(inputs)))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=keep, dynamic=dynamic, fullgraph=True)(*clones(args))
    return found[-1]


def clones(args: Tensors) -> list[torch.Tensor]:
    return [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]


def call_of(gm: torch.fx.GraphModule, args: Tensors) -> list[Any]:
    """The graph's inputs for a function's arguments: dynamo puts numbers in front of the tensors that have them."""
    sizes, call, left = dict[str, int](), list[Any](), list(args)
    known = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
    tensors = iter(left)
    for fake in known:
        if isinstance(fake, torch.Tensor):
            value = next(tensors)
            sizes |= {str(size): n for size, n in zip(fake.shape, value.shape, strict=True)}
    tensors = iter(left)
    for fake in known:
        call.append(next(tensors) if isinstance(fake, torch.Tensor) else sizes[str(fake)])
    return call


def ran(run: Callable[..., Any], gm: torch.fx.GraphModule, args: Tensors, aot: bool) -> list[torch.Tensor]:
    """What a run gives, what it leaves in its arguments, and with aot their gradients."""
    given = clones(args)
    with torch.set_grad_enabled(aot):
        found = list(run(*call_of(gm, given)))
    grads: list[torch.Tensor] = []
    if aot:
        sum(one.float().pow(2).sum() for one in found if one.requires_grad).backward()
        grads = [one.grad for one in given if one.grad is not None]
        assert grads
    return [one.detach() for one in (*found, *given, *grads)]


def r(*size: int, grad: bool = False, **more: Any) -> torch.Tensor:
    return torch.randn(*size, **more).requires_grad_(grad)


def written(total: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total.add_(x.sum(0))
    return (total * 2,)


def part_written(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x[:, :2] = y[:, :2] * 2
    return (y + 1,)


def of_one_value(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y.t(), y.view(-1)


def softmax(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.softmax(x @ w, 1).pow(2), x.sum(0) * x.shape[0]


CASES: dict[str, tuple[Callable[..., Any], list[Any], list[Any] | None, bool]] = {
    # function, arguments, other arguments where sizes may vary, gradients
    "inference": (softmax, [r(8, 16), r(16, 4)], None, False),
    "sizes that vary": (softmax, [r(8, 16), r(16, 4)], [r(5, 16), r(16, 4)], False),
    "a size of 1": (softmax, [r(8, 16), r(16, 4)], [r(1, 16), r(16, 4)], False),
    "a written input": (written, [r(16), r(8, 16)], None, False),
    "a part of an input": (part_written, [r(6, 4), r(6, 4)], [r(7, 4), r(7, 4)], False),
    "views of an input": (lambda x: (x.view(-1), x.t(), x + 1), [r(4, 4)], None, False),
    "views, sizes vary": (lambda x: (x.t(), x.view(-1, 2), x + 1), [r(4, 6)], [r(6, 4)], False),
    "the input itself": (lambda x: (x, x + 1), [r(4, 4)], None, False),
    "views of one value": (of_one_value, [r(4, 4)], None, False),
    "complex views": (lambda x: (x.conj(), (x * 2).imag), [r(4, dtype=torch.complex64)], None, False),
    "joint": (softmax, [r(8, 16, grad=True), r(16, 4, grad=True)], None, True),
    "joint, sizes vary": (softmax, [r(8, 16, grad=True), r(16, 4)], [r(5, 16, grad=True), r(16, 4)], True),
    "joint with views": (lambda x: (x.view(-1), (x * x).t()), [r(4, 4, grad=True)], None, True),
    "no gradients": (softmax, [r(8, 16, grad=True), r(16, 4)], None, False),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bits_survive_the_bytes(case: str) -> None:
    fn, args, others, aot = CASES[case]
    gm, inputs = captured(fn, args, dynamic=others is not None)
    shapes: Any = "from_graph" if others else "from_example_inputs"
    made = litz.standalone_compile(gm, inputs, dynamic_shapes=shapes, aot=aot)
    loaded = litz.deserialize(made.serialize())
    assert loaded.serialize() == made.serialize()
    for given in (args, *([others] if others else [])):
        eager, here, there = (ran(run, gm, given, aot) for run in (gm, made, loaded))
        for one, other, again in zip(eager, here, there, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)  # both round; the bits are asked below
            assert torch.equal(other, again) and other.stride() == again.stride()


def test_aliases_are_aliases_again() -> None:
    gm = make_fx(lambda x: (x.view(-1), x, x + 1))(r(4, 4))
    loaded = litz.deserialize(litz.standalone_compile(gm, (r(4, 4),)).serialize())
    x = r(4, 4)
    view, same, other = loaded(x)
    assert same is x and view.data_ptr() == x.data_ptr() and other.data_ptr() != x.data_ptr()


LOADS = """
import sys, torch, litz
for case in sys.argv[2:]:
    given, aot = torch.load(f"{sys.argv[1]}/{case}.given")
    run = litz.load(f"{sys.argv[1]}/{case}.artifact")
    found = list(run(*given))
    if aot:
        sum(one.float().pow(2).sum() for one in found if one.requires_grad).backward()
    grads = [one.grad for one in given if one.grad is not None]
    torch.save([one.detach() for one in (*found, *given, *grads)], f"{sys.argv[1]}/{case}.found")
    assert not {"litz.pipeline", "litz.lower", "litz.driver"} & set(sys.modules), "no compiler"
"""


def test_another_process_has_equal_bits(tmp_path: Path) -> None:
    wanted = {}
    for case in ("inference", "a written input", "joint"):
        fn, args, _, aot = CASES[case]
        gm, inputs = captured(fn, args)
        made = litz.standalone_compile(gm, inputs, aot=aot)
        made.save(tmp_path / f"{case}.artifact")
        torch.save((clones(args), aot), tmp_path / f"{case}.given")
        wanted[case] = ran(made, gm, args, aot)
    done = run_warm(["-c", LOADS, str(tmp_path), *wanted])
    assert done.returncode == 0, done.stderr
    for case, expected in wanted.items():
        found = torch.load(tmp_path / f"{case}.found")
        assert all(map(torch.equal, found, expected)) and len(found) == len(expected)


IMPORTS = """
import sys, time, torch
began = time.perf_counter()
import litz
run = litz.load(sys.argv[1])
x = torch.load(sys.argv[2])
found = run(*x)
print(time.perf_counter() - began)
loaded = [name for name in ("triton", "sympy", "torch._dynamo", "torch._inductor", "litz.pipeline", "litz.lower",
                            "litz.capture", "litz.codegen", "pickle_of_litz") if name in sys.modules]
print(loaded)
torch.save(found, sys.argv[3])
"""


def test_what_a_process_imports_that_loads(tmp_path: Path) -> None:
    fn, args, _, _ = CASES["inference"]
    gm, inputs = captured(fn, args)
    made = litz.standalone_compile(gm, inputs)
    made.save(tmp_path / "artifact")
    torch.save(args, tmp_path / "given")
    command = [sys.executable, "-c", IMPORTS, *(str(tmp_path / name) for name in ("artifact", "given", "found"))]
    environment = {**os.environ, "PATH": "", "LITZ_CACHE_DIR": str(tmp_path / "empty")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, imported = done.stdout.splitlines()
    assert imported == "[]" and float(seconds) < 3  # 0.3 on an idle machine
    assert all(map(torch.equal, torch.load(tmp_path / "found"), made(*args)))


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.fixture(scope="module")
def data() -> bytes:
    fn, args, _, _ = CASES["joint"]
    gm, inputs = captured(fn, args)
    return litz.standalone_compile(gm, inputs, aot=True).serialize()


def test_every_damaged_byte_is_seen(data: bytes) -> None:
    files = container.unpack(data)
    begins = len(data) - sum(map(len, files.values()))
    places = {0: "no artifact of litz", 20: "header", 40: "header", begins - 1: "header"}
    at = begins
    for name, content in files.items():
        places |= {place: name for place in ([at, at + len(content) - 1] if content else [])}
        at += len(content)
    assert len(places) > 10 and MANIFEST in places.values()
    for place, part in places.items():
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(ArtifactError, match=part.replace(".", r"\.")):
            litz.deserialize(bytes(damaged))
    for damaged in (data[:-1], data[:30], data + b"x", b"", data[:begins]):
        with pytest.raises(ArtifactError):
            litz.deserialize(damaged)


def repacked(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The artifact with another manifest, as somebody would make it who computes the sums anew."""
    files = container.unpack(data)
    spec = json.loads(files[MANIFEST])
    change(spec)
    return container.pack({**files, MANIFEST: json.dumps(spec).encode()})


def test_another_torch_device_or_plugin_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9.9")
        with pytest.raises(ArtifactError, match=r"made with torch 2\..* and this is torch 9\.9\.9"):
            litz.deserialize(data)
    with monkeypatch.context() as patch:
        patch.setattr(cpp_kernels, "made_for", lambda target: "instruction set of another machine")
        with pytest.raises(ArtifactError, match=r"this is .*instruction set of another machine"):
            litz.deserialize(data)
    with monkeypatch.context() as patch:
        digest = sources.sources_digest
        patch.setattr(sources, "sources_digest", lambda folder: digest(folder) + "litz_passes" * ("passes" in folder))
        with pytest.raises(ArtifactError, match=r"other sources of litz_passes than"):
            litz.deserialize(data)
    with pytest.raises(ArtifactError, match="this is litz-artifact 0"):
        litz.deserialize(repacked(data, lambda spec: spec.update(version=0)))
    with pytest.raises(ArtifactError, match="needs the plugin 'mine'"):
        litz.deserialize(repacked(data, lambda spec: spec.update(needs=[["mine", "litz-mine", "1"]])))
    litz.deserialize(data)


class Evil:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def test_an_attackers_archive_is_an_error_and_nothing_else(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = container.unpack(data)
    for name in ("../evil", "/tmp/evil", "a/../../evil", "a\\..\0", "manifest.json"):
        with pytest.raises(ArtifactError):
            litz.deserialize(container.pack({**files, name: b"evil"}))
    evil = pickle.dumps(Evil())
    for damaged in (
        evil,
        container.MAGIC + evil,
        container.pack({MANIFEST: evil}),
        container.pack({**files, MANIFEST: evil}),
    ):
        with pytest.raises(ArtifactError):
            litz.deserialize(damaged)
    rows = json.dumps([["x", -1, "0" * 64]]).encode()
    header = container.MAGIC + len(rows).to_bytes(8, "big") + hashlib.sha256(rows).digest() + rows
    with pytest.raises(ArtifactError, match="names no files"):
        litz.deserialize(header)
    for wrong in (
        {"record": "os:system", "fields": {}},
        {"record": "torch._functorch._aot_autograd.utils:os.system", "fields": {}},
        {"type": "posix:system"},
        {"type": "subprocess:Popen"},
        {"enum": "os:system", "name": "x"},
        {"view": "apply_view_meta_sequence", "args": []},
        {"torch": "load"},
        {"call": "os:system"},
    ):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            records.decoded(wrong)
        with pytest.raises(ArtifactError):
            litz.deserialize(repacked(data, lambda spec: spec["call"]["wrappers"].update(runtime_metadata=wrong)))  # noqa: B023
    assert not list(tmp_path.iterdir()) and not Path("/tmp/evil").exists()


def test_a_file_that_others_may_write_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(data)
    path.chmod(0o666)
    with pytest.raises(ArtifactError, match="others may change"):
        litz.load(path)
    path.chmod(0o600)
    litz.load(path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        from litz_aot.artifact import load

        load(tmp_path / "missing")


def test_inputs_of_another_kind_are_refused() -> None:
    gm, inputs = captured(softmax, [r(8, 16), r(16, 4)], dynamic=True)
    run = litz.deserialize(litz.standalone_compile(gm, inputs, dynamic_shapes="from_graph").serialize())
    x, w = r(8, 16), r(16, 4)
    call = call_of(gm, [x, w])
    run(*call)
    at = next(n for n, value in enumerate(call) if value is x)
    for wrong, problem in (
        (x.double(), "torch.float64 on cpu"),
        (r(8, 15), "sizes"),
        (r(16, 8).t(), "strides"),
        (x.to("meta"), "on meta"),
        (r(8), "sizes"),
        (3, "is int; a tensor is expected"),
        (torch.ones(8, 16).to_sparse(), "layout"),
        (torch._neg_view(x), "lazily"),
    ):
        with pytest.raises(ArtifactInputError, match=problem):
            run(*[wrong if n == at else value for n, value in enumerate(call)])
    with pytest.raises(ArtifactInputError, match="takes"):
        run(*call[1:])
    gm, inputs = captured(part_written, [r(6, 4), r(6, 4)])
    run = litz.deserialize(litz.standalone_compile(gm, inputs).serialize())
    memory = r(9, 4)
    with pytest.raises(ArtifactInputError, match="share memory"):
        run(memory[:6], memory[3:])
    run(memory[3:], r(6, 4))
    gm, inputs = captured(softmax, [r(8, 16, grad=True), r(16, 4)])
    run = litz.standalone_compile(gm, inputs, aot=True)
    with pytest.raises(ArtifactInputError, match="requires gradients"):
        run(r(8, 16, grad=True), r(16, 4, grad=True))


# ---------------------------------------------------------------------------------------------------- other graphs


def test_a_graph_of_make_fx_with_tensors_and_nested_results() -> None:
    kept, layer = r(16), torch.nn.Linear(16, 16)

    def f(x: torch.Tensor) -> dict[str, Any]:
        return {"y": (layer(x) + kept, None), "z": [x.sum(), 3]}

    gm, x = make_fx(f)(r(8, 16)), r(8, 16)
    before = str(gm.graph)
    made = litz.standalone_compile(gm, (x,))
    assert str(gm.graph) == before
    found, wanted = litz.deserialize(made.serialize())(x), f(x)
    torch.testing.assert_close(found["y"][0], wanted["y"][0])
    torch.testing.assert_close(found["z"][0], wanted["z"][0])
    assert found["y"][1] is None and found["z"][1] == 3 and not found["y"][0].requires_grad


def test_a_region_of_a_graph_and_the_trace_that_is_under_way(tmp_path: Path) -> None:
    from torch.fx.passes.split_module import split_module

    artifacts = []

    def by_regions(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        calls = [node for node in gm.graph.nodes if node.op in ("call_function", "call_method")]
        split = split_module(gm, None, lambda node: int(calls.index(node) > 1))
        for name, part in list(split.named_children()):
            own: Any = part
            fakes = [node.meta["example_value"] for node in own.graph.find_nodes(op="placeholder")]
            made = litz.standalone_compile(own, fakes, dynamic_shapes="from_tracing_context")
            artifacts.append(litz.deserialize(made.serialize()))
            setattr(split, name, torch.nn.Module())
            getattr(split, name).forward = artifacts[-1]
        return split.forward

    f = lambda x: ((x.sin() * 2).cos() + 1).relu()
    torch._dynamo.reset()
    compiled = torch.compile(f, backend=by_regions, dynamic=True)
    for rows in (8, 5):
        torch.testing.assert_close(compiled(x := r(rows, 16)), f(x))
    assert len(artifacts) == 2


def test_fake_inputs_that_are_numbers_by_now() -> None:
    """Who compiles for one size hands over fake tensors of another trace."""
    gm, _ = captured(softmax, [r(8, 16), r(16, 4)], dynamic=True)
    fakes = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
    run = litz.standalone_compile(gm, fakes)
    call = call_of(gm, [r(8, 16), r(16, 4)])
    torch.testing.assert_close(run(*call), gm(*call))
    with pytest.raises(ArtifactInputError):
        run(*call_of(gm, [r(5, 16), r(16, 4)]))


class Doubling:
    """Makes each product twice as large; for who looks into the key, by its identity."""

    def __init__(self, identity: str) -> None:
        self.identity, self.seen = identity, 0

    def uuid(self) -> str:
        return self.identity

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.seen += 1
        for node in list(graph.nodes):
            if node.target is torch.ops.aten.mm.default:
                with graph.inserting_after(node):
                    twice = graph.call_function(torch.ops.aten.mul.Tensor, (node, 2))
                twice.meta["val"] = node.meta["val"]
                node.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)  # noqa: B023


def test_custom_passes_run_in_order_and_are_in_the_key() -> None:
    gm, x = make_fx(torch.matmul)(r(8, 16), r(16, 16)), (r(8, 16), r(16, 16))
    keys = {}
    for name, passes in {
        "none": [],
        "one": [Doubling("a")],
        "same": [Doubling("a")],
        "other": [Doubling("b")],
        "two": [Doubling("a"), ("plain", Doubling("c"))],
    }.items():
        with report.collect() as reports:
            run = litz.standalone_compile(gm, x, passes=passes, options={"graph_cache": True})
        factor = 2 ** len(passes)
        torch.testing.assert_close(run(*x), torch.matmul(*x) * factor)
        torch.testing.assert_close(litz.deserialize(run.serialize())(*x), torch.matmul(*x) * factor)
        keys[name] = reports[-1].graph_cache.split()[1]
    assert len(set(keys.values())) == 4 and keys["one"] == keys["same"]
    with pytest.raises(ArtifactError, match="no identity"):
        litz.standalone_compile(gm, x, passes=[lambda graph: None])


def test_what_cannot_be_compiled_so_says_why() -> None:
    gm = make_fx(torch.sin)(r(4))
    with pytest.raises(ArtifactError, match=r"no torch\.fx.GraphModule"):
        litz.standalone_compile(torch.sin, (r(4),))  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="dynamic_shapes is 'all'"):
        litz.standalone_compile(gm, (r(4),), dynamic_shapes="all")  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="no trace is under way"):
        litz.standalone_compile(gm, (r(4),), dynamic_shapes="from_tracing_context")
    with pytest.raises(ArtifactError, match="2 inputs are given for a graph that takes 1"):
        litz.standalone_compile(gm, (r(4), r(4)))
    with pytest.raises(ArtifactError, match="calls the module 0"):
        litz.standalone_compile(torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4))), (r(4),))
    with pytest.raises(AttributeError, match="no attribute 'compile_all'"):
        litz.compile_all


def test_what_other_threads_compile_stays_out_of_an_artifact() -> None:
    """Its records came from whatever the process compiled meanwhile."""
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        begun.wait(60)
        torch.compile(torch.cos, backend="litz")(r(7))
        ended.set()

    def wait(graph: torch.fx.Graph) -> None:
        begun.set()
        assert not ended.wait(1.5)

    thread = threading.Thread(target=other)
    thread.start()
    made = litz.standalone_compile(make_fx(torch.sin)(r(4)), (r(4),), passes=[("wait", wait)])
    thread.join()
    x = r(4)
    assert ended.is_set() and torch.equal(litz.deserialize(made.serialize())(x), made(x))


def test_what_no_other_process_could_run_is_not_serialized() -> None:
    memory = r(9, 4)
    gm, _ = captured(part_written, [r(6, 4), r(6, 4)])
    made = litz.standalone_compile(gm, [memory[:6], memory[3:]])
    with pytest.raises(ArtifactError, match=r"where its inputs lie|torch's own operations"):
        made.serialize()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_runs_while_somebody_else_captures_a_graph(tmp_path: Path) -> None:
    args = [torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")]
    gm, inputs = captured(softmax, args)
    made = litz.standalone_compile(gm, inputs, options={"mode": "reduce-overhead"})
    made.save(tmp_path / "artifact")
    run = litz.load(tmp_path / "artifact")
    for one in (made, run):
        one(*args)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            one(*args)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = one(*args)
        args[0].normal_()
        graph.replay()
        torch.cuda.synchronize()
        exact = softmax(*(value.double() for value in args))
        for mine, eager, wanted in zip(found, softmax(*args), exact, strict=True):
            allowed = 4 * (eager - wanted).abs().max() + 1e-6 * wanted.abs().max()
            assert bool((mine - wanted).abs().max() <= allowed)
