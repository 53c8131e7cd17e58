"""The graph passes, each on small graphs: what goes, and what has to stay."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.capture.graph import Graph, make_graph
from litz.capture.passes import eliminate_dead_code
from litz_passes.graph.common_subexpressions import eliminate_common_subexpressions
from litz_passes.graph.fold_constants import fold_constants
from litz_passes.graph.no_ops import remove_no_ops
from litz_passes.graph.place_constants import _is_move, _known, place_constants
from support.own_plugins import passes

aten, prims = torch.ops.aten, torch.ops.prims


def graph_of(function, *inputs, dynamic=False) -> Graph:
    module = make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(*inputs)
    return make_graph("test", module, "inference")


def ops(graph: Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def run(graph: Graph, *inputs):
    return torch.fx.Interpreter(graph.module).run(*inputs)


def check(run_pass, function, *inputs, left: list[str]):
    """`run_pass` leaves these ops, changes the original in nothing, and the result in nothing."""
    graph = graph_of(function, *inputs)
    before = ops(graph)
    after = run_pass(graph)
    after.module.graph.lint()
    assert ops(after) == left
    assert ops(graph) == before
    expected, result = function(*inputs), run(after, *inputs)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    if isinstance(expected, torch.Tensor):
        assert result.stride() == expected.stride() and result.dtype == expected.dtype
    return after


X = torch.tensor([[1.0, -0.0], [math.inf, math.nan]])


# --- dead code


def test_dead_code_goes_and_effects_stay():
    def function(x):
        aten.exp.default(aten.sin.default(x))
        aten.rand.default([3])  # dropping it would change what the next op draws
        aten._assert_async.msg(aten.ones.default([]), "fine")
        return aten.cos.default(x)

    graph = graph_of(function, X)
    left = ops(eliminate_dead_code(graph))
    assert "aten.exp.default" not in left and "aten.sin.default" not in left
    assert "aten.rand.default" in left and "aten.cos.default" in left


def test_dead_code_keeps_writes():
    def function(x):
        aten.copy_.default(x, aten.cos.default(x))
        return aten.zeros.default([1])

    assert "aten.copy_.default" in ops(eliminate_dead_code(graph_of(function, X)))


def test_nothing_to_do_returns_the_same_graph():
    graph = graph_of(lambda x: aten.cos.default(x), X)
    for each in passes("graph"):
        assert each.run(graph, None) is graph


# --- common subexpressions


def test_repeated_work_is_shared():
    def function(x):
        return aten.mul.Tensor(aten.exp.default(x), aten.add.Tensor(aten.exp.default(x), 1))

    check(
        eliminate_common_subexpressions,
        function,
        X,
        left=["aten.exp.default", "aten.add.Tensor", "aten.mul.Tensor"],
    )


@pytest.mark.parametrize("pair", [(1, 1.0), (0.0, -0.0), (1, True)])
def test_arguments_of_another_type_or_sign_differ(pair):
    def function(x):
        return aten.add.Tensor(aten.mul.Tensor(x, pair[0]), aten.mul.Tensor(x, pair[1]))

    graph = graph_of(function, X)
    assert eliminate_common_subexpressions(graph) is graph


def test_random_ops_are_never_shared():
    def function(x):
        return aten.add.Tensor(aten.rand_like.default(x), aten.rand_like.default(x))

    graph = graph_of(function, X)
    assert eliminate_common_subexpressions(graph) is graph


def test_two_outputs_are_not_merged():
    graph = graph_of(lambda x: (aten.exp.default(x), aten.exp.default(x)), X)
    assert eliminate_common_subexpressions(graph) is graph
    views = graph_of(lambda x: (aten.view.default(aten.exp.default(x), [4]), aten.exp.default(x)), X)
    assert eliminate_common_subexpressions(views) is views


def test_an_inner_value_may_share_with_an_output():
    def function(x):
        return aten.exp.default(x), aten.sin.default(aten.exp.default(x))

    check(eliminate_common_subexpressions, function, X, left=["aten.exp.default", "aten.sin.default"])


def test_reads_on_both_sides_of_a_write_stay_apart():
    def function(x):
        a = aten.exp.default(x)
        aten.copy_.default(x, a)
        return aten.add.Tensor(a, aten.exp.default(x))

    graph = graph_of(function, X.clone())
    assert eliminate_common_subexpressions(graph) is graph


# --- no-ops


def test_float_identities_that_hold():
    def function(x):
        y = aten.exp.default(x)
        y = aten.mul.Tensor(y, 1)
        y = aten.sub.Tensor(y, 0.0)
        y = aten.add.Tensor(y, -0.0)
        y = aten.div.Tensor(y, 1.0)
        y = aten.pow.Tensor_Scalar(y, 1)
        return aten.neg.default(y)

    check(remove_no_ops, function, X, left=["aten.exp.default", "aten.neg.default"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.neg.default(aten.add.Tensor(x, 0.0)),  # -0.0 + 0.0 is 0.0
        lambda x: aten.neg.default(aten.sub.Tensor(x, -0.0)),
        lambda x: aten.neg.default(aten.mul.Tensor(x, 0.0)),  # NaN and inf
        lambda x: aten.neg.default(aten._to_copy.default(x, dtype=torch.float64)),
        lambda x: aten.neg.default(
            aten.clone.default(aten.permute.default(x, [1, 0]), memory_format=torch.contiguous_format)
        ),
        lambda x: aten.neg.default(aten.constant_pad_nd.default(x, [1, -1])),  # same shape, shifted
        lambda x: aten.neg.default(aten.permute.default(x, [1, 0])),
    ],
)
def test_what_only_looks_like_a_no_op_stays(function):
    graph = graph_of(function, X)
    assert ops(remove_no_ops(graph)) == ops(graph)


def test_integer_zero_goes():
    check(
        remove_no_ops,
        lambda x: aten.neg.default(aten.add.Tensor(x, 0)),
        torch.arange(3),
        left=["aten.neg.default"],
    )


def test_bool_times_one_changes_the_dtype_and_stays():
    graph = graph_of(lambda x: aten.neg.default(aten.mul.Tensor(x, 1)), torch.tensor([True]))
    assert remove_no_ops(graph) is graph


def test_views_and_copies_within_the_graph_go():
    def function(x):
        y = aten.permute.default(aten.permute.default(x, [1, 0]), [1, 0])
        y = aten.view.default(y, [2, 2])
        y = aten.expand.default(y, [2, 2])
        y = aten.slice.Tensor(y, 0, 0, 9223372036854775807)
        y = aten.clone.default(y)
        y = prims.convert_element_type.default(y, torch.float32)
        y = aten.constant_pad_nd.default(y, [0, 0])
        y = aten.cat.default([y])
        return aten.neg.default(y)

    after = check(lambda g: eliminate_dead_code(remove_no_ops(g)), function, X, left=["aten.neg.default"])
    assert after.placeholders[0].name in str(after)


def test_a_view_that_a_size_is_read_off_stays() -> None:
    """torch 2.11 binds a symbol for the size of such a slice; it may be asserted to be the whole (s52n:8364)."""
    graph = graph_of(lambda x: x.view(2, 2).neg(), X)
    (view,) = (node for node in graph.nodes if "view" in str(node.target))
    assert "view" not in str(ops(remove_no_ops(graph)))
    view.meta["unbacked_bindings"] = {sympy.Symbol("u0"): ()}
    assert remove_no_ops(graph) is graph


def test_multiplication_by_a_tensor_of_ones():
    def function(x):
        return aten.neg.default(aten.mul.Tensor(x, aten.full.default([2, 2], 1.0)))

    check(lambda g: eliminate_dead_code(remove_no_ops(g)), function, X, left=["aten.neg.default"])


def test_a_broadcast_is_not_a_no_op():
    def function(x):
        return aten.neg.default(aten.mul.Tensor(x, aten.full.default([2, 2, 2], 1.0)))

    graph = graph_of(function, X)
    assert remove_no_ops(graph) is graph


def test_returned_copies_of_inputs_and_of_other_outputs_stay():
    graph = graph_of(lambda x: aten.clone.default(x), X)
    assert remove_no_ops(graph) is graph

    def both(x):
        y = aten.exp.default(x)
        return y, aten.clone.default(y)

    graph = graph_of(both, X)
    assert remove_no_ops(graph) is graph
    view = graph_of(lambda x: aten.view.default(aten.clone.default(x), [4]), X)
    assert remove_no_ops(view) is view


def test_a_returned_copy_of_a_fresh_result_goes():
    check(remove_no_ops, lambda x: aten.clone.default(aten.exp.default(x)), X, left=["aten.exp.default"])


def test_a_copy_that_is_written_back_stays():
    def swap(x, y):
        old = aten.clone.default(x)
        aten.copy_.default(x, y)
        aten.copy_.default(y, old)

    graph = graph_of(swap, X.clone(), X.clone())
    assert remove_no_ops(graph) is graph


def test_as_strided_that_is_a_reshape():
    def function(x):
        return aten.neg.default(aten.as_strided.default(aten.exp.default(x), [4], [1]))

    check(remove_no_ops, function, X, left=["aten.exp.default", "aten.view.default", "aten.neg.default"])


def test_no_ops_with_symbolic_sizes_add_no_guard():
    def function(x):
        y = aten.mul.Tensor(x, 1)
        return aten.neg.default(aten.view.default(y, [x.shape[0], x.shape[1]]))

    graph = graph_of(function, torch.randn(3, 5), dynamic=True)
    guards = len(graph.shape_env.guards)
    after = eliminate_dead_code(remove_no_ops(graph))
    assert [op for op in ops(after) if "sym_size" not in op] == ["aten.neg.default"]
    assert len(graph.shape_env.guards) == guards
    x = torch.randn(2, 7)
    torch.testing.assert_close(run(after, x), -x)


# --- constants


def test_pointwise_of_uniform_tensors_folds():
    def function(x):
        ones = aten.full.default([2, 2], 1)
        half = aten.div.Tensor(aten.full.default([2, 2], 3.0), 2)
        return aten.add.Tensor(x, aten.mul.Tensor(ones, half))

    graph = check(
        lambda g: eliminate_dead_code(fold_constants(g)), function, X, left=["aten.full.default", "aten.add.Tensor"]
    )
    full = next(node for node in graph.nodes if node.target == aten.full.default)
    assert full.args[1] == 1.5 and full.kwargs["dtype"] == torch.float32


def test_rounding_happens_in_the_tensor_dtype():
    def function(x):
        third = aten.full.default([2, 2], 1 / 3, dtype=torch.float16)
        return aten.add.Tensor(x, prims.convert_element_type.default(third, torch.float32))

    check(lambda g: eliminate_dead_code(fold_constants(g)), function, X, left=["aten.full.default", "aten.add.Tensor"])


def test_inexact_ops_and_random_ops_do_not_fold():
    def function(x):
        return aten.add.Tensor(x, aten.exp.default(aten.full.default([2, 2], 3.0)))

    graph = graph_of(function, X)
    assert fold_constants(graph) is graph


def test_expanded_constants_keep_their_strides():
    def function(x):
        return aten.expand.default(aten.full.default([1], 2.0), [4])

    graph = graph_of(function, X)
    assert fold_constants(graph) is graph


def test_lifted_number_becomes_a_fill():
    number = torch.tensor(2.5)

    graph = graph_of(lambda x: aten.mul.Tensor(x, aten.lift_fresh_copy.default(number)), X)
    after = eliminate_dead_code(fold_constants(graph))
    assert ops(after) == ["aten.full.default", "aten.mul.Tensor"]
    torch.testing.assert_close(run(after, X), X * 2.5, equal_nan=True)


def test_nan_and_negative_zero_survive_folding():
    def function(x):
        a = aten.mul.Tensor(aten.full.default([2, 2], 0.0), -1)
        b = aten.div.Tensor(aten.full.default([2, 2], 0.0), 0.0)
        return a, b

    graph = fold_constants(graph_of(function, X))
    a, b = run(graph, X)
    assert ops(eliminate_dead_code(graph)) == ["aten.full.default"] * 2
    assert torch.signbit(a).all() and torch.isnan(b).all()


# --- numbers of the CPU's


def test_a_number_that_torch_computes_on_the_cpu_is_folded():
    """Eager computes it there as well, so the value is the same to the last bit; a kernel would have it copied."""

    def function(x):
        scale = torch.log(torch.tensor(0.3)) * torch.sqrt(torch.tensor(7, dtype=torch.float64)).float()
        return torch.where(x > scale, x, torch.tanh(torch.tensor(-2.5)))

    left = ["aten.full.default", "aten.gt.Tensor", "aten.full.default", "aten.where.self"]
    check(lambda graph: eliminate_dead_code(fold_constants(graph)), function, X, left=left)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.exp(torch.tensor([2.0])),
        lambda x: x * torch.bernoulli(torch.tensor(0.5)),
        lambda x: x * torch.exp(x.sum()),
    ],
    ids=["a tensor", "random", "of data"],
)
def test_what_is_no_number_of_the_cpus_stays(function):
    graph = graph_of(function, X)
    kept = {"aten.exp.default", "aten.bernoulli.default"}
    assert kept.intersection(ops(eliminate_dead_code(fold_constants(graph))))


def moves(graph: Graph) -> int:
    return ops(graph).count("aten._to_copy.default")


@pytest.mark.parametrize("shape", [(3,), (1, 3), (0,), ()])
def test_a_literal_is_put_on_its_device_once(shape):
    values = torch.arange(3.0)[: math.prod(shape)].reshape(shape).tolist()
    x = torch.empty(shape, device="meta")
    graph = graph_of(lambda x: (x * torch.tensor(values).double().to("meta")).double(), x)
    before = moves(graph)
    after = eliminate_dead_code(place_constants(graph))
    assert moves(after) == before - 2 and [node.op for node in after.nodes].count("get_attr") == 1
    (constant,) = (node for node in after.nodes if node.op == "get_attr")
    held = getattr(after.module, str(constant.target))
    assert held.device.type == "meta" and held.shape == shape and held.dtype == torch.float64
    assert run(after, x).shape == shape


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.zeros(20000).to("meta").sum() + torch.tensor([0.0] * 2000000).to("meta").sum(),
        lambda x: x + torch.zeros(2).add_(1).to("meta"),
        lambda x: x + torch.rand(2).to("meta"),
        lambda x: x + torch.empty(2).mul(2).to("meta"),
        lambda x: x + torch.arange(2000000).add(1).to("meta").sum(),
    ],
    ids=["large", "written before", "random", "no value", "many"],
)
def test_literals_that_are_moved_in_each_call(function):
    graph = graph_of(function, torch.empty(2, device="meta"))
    assert place_constants(graph) is graph


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x, torch.tensor([1.0, 2.0]).to("meta")),
        lambda x: (x, torch.tensor([1.0, 2.0]).to("meta").view(2, 1)),
        lambda x: x + torch.tensor([1.0]).to("meta").add_(1),
    ],
    ids=["returned", "a view of it returned", "written"],
)
def test_a_literal_that_others_get_is_a_fresh_copy_made_on_the_device(function):
    graph = graph_of(function, torch.empty(2, device="meta"))
    after = eliminate_dead_code(place_constants(graph))
    assert moves(graph) == 1 and moves(after) == 0
    assert [(node.target, node.args[0].op) for node in after.nodes if node.target is torch.ops.aten.clone.default] == [
        (torch.ops.aten.clone.default, "get_attr")
    ]


def buckets(n: int) -> torch.Tensor:
    """Positions as MPNet buckets them, on the CPU."""
    apart = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    far = 8 + (torch.log(apart.abs().float() / 8) / math.log(16) * 8).to(torch.long)
    return torch.where(apart.abs() < 8, apart.abs(), torch.clamp(far, max=15))


def test_what_is_counted_on_the_cpu_is_put_there_with_eagers_values():
    graph = graph_of(lambda x: x[buckets(40).to("meta")], torch.empty(16, device="meta"))
    (move,) = (node for node in graph.nodes if _is_move(node))
    assert torch.equal(_known(graph, [move], ())[move.args[0]], buckets(40))
    after = eliminate_dead_code(place_constants(graph))
    assert ops(after) == ["aten.index.Tensor"]


def test_what_is_counted_up_to_a_size_of_an_input_is_not():
    function = lambda x: x + torch.arange(x.shape[0]).to("meta")
    graph = graph_of(function, torch.empty(16, device="meta"), dynamic=True)
    assert place_constants(graph) is graph


def test_a_device_that_is_not_here_changes_nothing():
    if torch.cuda.is_available():
        pytest.skip("it is here")
    with FakeTensorMode():
        x = torch.empty(2, device="cuda")
    graph = graph_of(lambda x: x * torch.tensor([1.0, 2.0]).to("cuda:0"), x)
    assert moves(graph) == 1 and place_constants(graph) is graph
