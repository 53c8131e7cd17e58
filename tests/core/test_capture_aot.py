"""Capture alone, end to end: torch.compile with a backend that runs each captured Graph as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_structure

from litz.capture.aot import compile_with_aot
from litz.capture.decompositions import decompositions
from litz.capture.graph import Graph
from litz.capture.passes import default_graph_passes


class Recorder:
    """A backend that keeps the Graphs it was given and interprets them."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []

    def __call__(self, gm, example_inputs):
        return compile_with_aot(
            gm,
            example_inputs,
            compile_graph=self.compile_graph,
            decompositions=decompositions(),
            graph_passes=self.run_passes,
        )

    def run_passes(self, graph: Graph) -> Graph:
        for each in default_graph_passes():
            graph = each.run(graph, None)
        graph.module.graph.lint()
        return graph

    def compile_graph(self, graph: Graph):
        assert not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert type(torch.zeros(1)) is torch.Tensor  # no fake mode is left on
        self.graphs.append(graph)
        interpreter = torch.fx.Interpreter(graph.module)

        def run(arguments):
            values = list(arguments)
            arguments.clear()
            return interpreter.run(*values)

        return run

    @property
    def kinds(self) -> list[str]:
        return [graph.kind for graph in self.graphs]


@pytest.fixture
def backend():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield Recorder()
    torch._dynamo.reset()


def compiled(function, backend, **kwargs):
    return torch.compile(function, backend=backend, **kwargs)


def test_inference(backend):
    x = torch.randn(3, 4)
    result = compiled(lambda x: (x + 1).relu() * 2, backend)(x)
    torch.testing.assert_close(result, (x + 1).relu() * 2)
    assert backend.kinds == ["inference"]
    assert backend.graphs[0].name.endswith("_inference")
    assert backend.graphs[0].visible_outputs == {0}


def test_training_matches_eager_and_marks_parameters_static(backend):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    x = torch.randn(5, 4, requires_grad=True)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()] + [x.grad.clone()]
    model.zero_grad()
    x.grad = None

    compiled(model, backend)(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()] + [x.grad], expected)
    forward, backward = backend.graphs
    assert (forward.kind, backward.kind) == ("forward", "backward")
    parameter_shapes = {tuple(p.shape) for p in model.parameters()}
    static = [tuple(forward.placeholders[i].meta["val"].shape) for i in sorted(forward.static_inputs)]
    assert len(static) == len(list(model.parameters())) and set(static) == parameter_shapes
    # The backward reads weights: those inputs are static too, the saved activations are not.
    saved = {backward.placeholders[i].name for i in backward.static_inputs}
    assert saved and saved <= {forward.placeholders[i].name for i in forward.static_inputs}
    assert len(backward.static_inputs) < len(backward.placeholders)
    assert forward.visible_outputs == {0} and len(forward.outputs) > 1
    assert not forward.dying_inputs and not backward.dying_inputs & backward.static_inputs


def test_what_only_the_backward_holds_dies_there(backend):
    """Of what is saved: an input, a view of one, and what the user gets too are held by others."""

    def f(x, y):
        hidden, shown = x @ y, y @ x
        return (hidden.sin() @ x.t()).sum() + (shown * shown).sum(), shown

    x, y = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    results = compiled(f, backend)(x, y)
    (results[0] + results[1].sum()).backward()
    forward, backward = backend.graphs
    names = [node.name for node in backward.placeholders]
    saved = {node.name for n, node in enumerate(forward.outputs) if n not in forward.visible_outputs}
    dying = {names[n] for n in backward.dying_inputs}
    others = {node.name for node in forward.placeholders} | {forward.outputs[n].name for n in forward.visible_outputs}
    assert dying and dying <= saved - others
    assert "mm" in dying and "mm_1" in names and "mm_1" not in dying
    assert "dying" in str(backward) and "dying" not in str(forward)


def test_backward_is_compiled_when_first_called(backend):
    x = torch.randn(3, requires_grad=True)
    loss = compiled(lambda x: x.sin().sum(), backend)(x)
    assert backend.kinds == ["forward"]
    loss.backward()
    assert backend.kinds == ["forward", "backward"]
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_backward_twice_with_retain_graph(backend):
    x = torch.randn(3, requires_grad=True)
    loss = compiled(lambda x: (x.exp() * x).sum(), backend)(x)
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * first)


def test_batch_norm_buffers_are_mutated_inputs(backend):
    model, reference = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    result = compiled(model, backend)(x)
    torch.testing.assert_close(result, reference(x))
    torch.testing.assert_close(list(model.buffers()), list(reference.buffers()))
    forward = backend.graphs[0]
    assert len(forward.mutated_inputs) == 3
    assert forward.mutated_inputs <= forward.static_inputs


def test_mutation_of_an_argument(backend):
    def add_one(x, y):
        x.add_(1)
        return x * y

    x, y = torch.zeros(3), torch.full((3,), 2.0)
    torch.testing.assert_close(compiled(add_one, backend)(x, y), torch.full((3,), 2.0))
    torch.testing.assert_close(x, torch.ones(3))
    assert len(backend.graphs[0].mutated_inputs) == 1


def test_swap_keeps_the_clone(backend):
    def swap(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    x, y = torch.zeros(3), torch.ones(3)
    assert compiled(swap, backend)(x, y) is None
    torch.testing.assert_close((x, y), (torch.ones(3), torch.zeros(3)))


def test_a_returned_clone_of_a_mutated_input_is_the_old_value(backend):
    def bump(x):
        old = x.clone()
        x.add_(1)
        return old

    x = torch.zeros(2)
    old = compiled(bump, backend)(x)
    torch.testing.assert_close((old, x), (torch.zeros(2), torch.ones(2)))


def test_clone_does_not_alias_the_input(backend):
    x = torch.zeros(2)
    result = compiled(lambda x: x.clone(), backend)(x)
    result.add_(1)
    torch.testing.assert_close(x, torch.zeros(2))


def test_equal_results_stay_two_tensors(backend):
    a, b = compiled(lambda x: (x + 1, x + 1), backend)(torch.zeros(2))
    a.add_(1)
    torch.testing.assert_close(b, torch.ones(2))


def test_outputs_that_are_inputs_views_duplicates_and_none(backend):
    def function(x, y):
        z = x + y
        return x, x.t(), z, z, None, 7, z[0]

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    results, expected = compiled(function, backend)(x, y), function(x, y)
    assert results[0] is x and results[2] is results[3] and results[4] is None and results[5] == 7
    assert results[1].data_ptr() == x.data_ptr() and results[6].data_ptr() == results[2].data_ptr()
    torch.testing.assert_close(
        [r for r in results if isinstance(r, torch.Tensor)], [e for e in expected if isinstance(e, torch.Tensor)]
    )


def test_one_tensor_passed_twice(backend):
    x = torch.randn(3, requires_grad=True)
    compiled(lambda a, b: (a * b).sum(), backend)(x, x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_arguments_that_share_storage_and_are_mutated(backend):
    def function(a, b):
        a.mul_(2)
        return a + b

    base, reference = torch.ones(4), torch.ones(4)
    result = compiled(function, backend)(base[:3], base[1:])
    torch.testing.assert_close(result, function(reference[:3], reference[1:]))
    torch.testing.assert_close(base, reference)


def test_no_outputs(backend):
    def function(x):
        x.add_(1)

    x = torch.zeros(2)
    assert compiled(function, backend)(x) is None
    torch.testing.assert_close(x, torch.ones(2))
    assert backend.graphs[0].outputs == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: {"sum": x.sum(), "both": (x, [x * 2, None])},
        lambda x: (x.cos(), (x.sin(), {"n": 3})),
        lambda x: [x + 1],
    ],
    ids=["a tensor", "a dict", "nested", "a list"],
)
@pytest.mark.parametrize("training", [False, True])
def test_a_graph_that_returns_no_flat_tuple(backend, function, training):
    """make_fx gives such graphs, dynamo none."""
    x = torch.randn(3, 4, requires_grad=training)
    graph = make_fx(function)(x.detach())
    found, expected = backend(graph, [x])(x), function(x)
    assert tree_structure(found) == tree_structure(expected)
    torch.testing.assert_close(tree_leaves(found), tree_leaves(expected))
    assert [getattr(item, "requires_grad", None) for item in tree_leaves(found)] == [
        getattr(item, "requires_grad", None) for item in tree_leaves(expected)
    ]


def test_dynamic_shapes_compile_once(backend):
    function = compiled(lambda x: (x @ x.t()).relu().sum(0) * x.shape[0], backend, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(function(x), (x @ x.t()).relu().sum(0) * rows)
    assert backend.kinds == ["inference"]
    graph = backend.graphs[0]
    assert 3 in graph.hints.values() and graph.shape_env is not None
    assert "s" in str(graph.placeholders[0].meta["val"])


def test_dynamic_training_and_symint_outputs(backend):
    function = compiled(lambda x: (x.flatten().softmax(0), x.shape[0] * 2), backend, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4, requires_grad=True)
        y, size = function(x)
        y[0].backward()
        eager = x.detach().requires_grad_()
        eager.flatten().softmax(0)[0].backward()
        assert size == rows * 2
        torch.testing.assert_close(x.grad, eager.grad)
    assert backend.kinds == ["forward", "backward"]


def test_unbacked_sizes(backend):
    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def run():
        return compiled(lambda x: x.nonzero().sum(), backend, fullgraph=True)(torch.tensor([0, 1, 2]))

    assert run().item() == 3


def test_no_grad_and_inference_mode(backend):
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    function = compiled(model, backend)
    with torch.no_grad():
        a = function(x)
    with torch.inference_mode():
        b = function(x)
    torch.testing.assert_close((a, b), (model(x).detach(),) * 2)
    assert not a.requires_grad and b.is_inference()
    assert set(backend.kinds) == {"inference"}


def test_autocast(backend):
    model = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    function = compiled(model, backend)
    with torch.autocast("cpu", torch.bfloat16):
        y = function(x)
        expected = model(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert model.weight.grad.dtype == torch.float32


def test_dropout_draws_once_for_forward_and_backward(backend):
    x = torch.ones(1000, requires_grad=True)
    y = compiled(lambda x: nn.functional.dropout(x, 0.5), backend)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    assert 300 < int((y == 0).sum()) < 700


def test_checkpointed_dropout_draws_the_same_mask_again(backend):
    from torch.utils.checkpoint import checkpoint

    def function(x):
        return checkpoint(lambda x: nn.functional.dropout(x.exp(), 0.5), x, use_reentrant=False)

    x = torch.zeros(1000, requires_grad=True)
    y = compiled(function, backend)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    for graph in backend.graphs:
        assert all("val" in node.meta for node in graph.nodes if node.op == "call_function" and node.users)


@pytest.mark.parametrize("kind", ["custom_op", "cond"])
def test_higher_order_ops(backend, kind):
    with torch.library._scoped_library("litz_capture_test", "FRAGMENT") as library:
        library.define("bump(Tensor(a!) x) -> ()")
        library.impl("bump", lambda x: x.add_(1) and None, "CPU")
        library.impl("bump", lambda x: None, "Meta")

        def custom_op(x):
            y = x * 2
            torch.ops.litz_capture_test.bump(y)
            return y

        def cond(x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

        x = torch.ones(())
        function = {"custom_op": custom_op, "cond": cond}[kind]
        torch.testing.assert_close(compiled(function, backend)(x), function(x))


def test_optimizer_step_with_foreach(backend):
    torch.manual_seed(1)
    ours, theirs = nn.Linear(3, 3), nn.Linear(3, 3)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 3)
    for model, wrap in ((ours, lambda f: compiled(f, backend)), (theirs, lambda f: f)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        step = wrap(optimizer.step)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_compiled_autograd(backend):
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    model(x).sum().backward()
    expected = model.weight.grad.clone()
    model.zero_grad()
    loss = compiled(model, backend)(x).sum()
    with torch._dynamo.utils.maybe_enable_compiled_autograd(True), torch._dynamo.config.patch(compiled_autograd=True):
        compiled(lambda: loss.backward(), backend)()
    torch.testing.assert_close(model.weight.grad, expected)


def test_failures_name_graph_and_stage(backend):
    def fail(graph):
        if graph.kind == "backward":
            raise ValueError("no such kernel")
        return Recorder.compile_graph(backend, graph)

    backend.compile_graph = fail
    x = torch.randn(3, requires_grad=True)
    loss = compiled(lambda x: x.sin().sum(), backend)(x)
    with pytest.raises(ValueError, match="no such kernel") as caught:
        loss.backward()
    assert any("backward" in note for note in caught.value.__notes__)


def test_reported_strides_reach_the_backward(backend):
    """A forward that saves an activation in another layout: the backward is compiled for that layout."""

    def compile_graph(graph):
        run = Recorder.compile_graph(backend, graph)
        if graph.kind != "forward":
            return run
        saved = [
            position
            for position, node in enumerate(graph.outputs)
            if position not in graph.visible_outputs and node.meta["val"].dim() == 2 and node.op != "placeholder"
        ]

        def transposed(arguments):
            results = list(run(arguments))
            for position in saved:
                results[position] = results[position].t().contiguous().t()
            return results

        transposed.output_strides = [(1, 3) if i in saved else None for i in range(len(graph.outputs))]
        assert saved
        return transposed

    backend.compile_graph = compile_graph
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(4, 4, requires_grad=True)
    compiled(lambda x, w: ((x @ w).exp() @ w).sum(), backend)(x, w).backward()
    backward = backend.graphs[-1]
    assert any(node.meta["val"].stride() == (1, 3) for node in backward.placeholders)
    gx = x.grad.clone()
    x.grad = None
    ((x @ w).exp() @ w).sum().backward()
    torch.testing.assert_close(gx, x.grad)


def test_printed_graph_is_readable(backend):
    compiled(nn.BatchNorm1d(4), backend)(torch.randn(8, 4))
    text = str(backend.graphs[0])
    assert "(static, mutated)" in text and "aten.copy_.default" in text and "f32[8, 4]" in text and "(saved)" in text


@pytest.mark.nightly
def test_gpt2(backend):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(64, (2, 16))
    expected = model(input_ids=tokens, labels=tokens).loss
    expected.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss = compiled(model, backend)(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close([p.grad for p in model.parameters()], grads, rtol=1e-4, atol=1e-5)


def test_resnet(backend):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetModel(config).train()
    x = torch.randn(2, 3, 32, 32)
    expected = model(x).last_hidden_state
    expected.square().mean().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    result = compiled(model, backend)(x).last_hidden_state
    result.square().mean().backward()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([p.grad for p in model.parameters()], grads, rtol=1e-3, atol=1e-5)
