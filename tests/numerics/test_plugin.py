"""The plugin's hooks: what strict mode leaves of what is registered, what it implies, and what it puts on record."""

from __future__ import annotations

import pytest
import torch

from litz import report
from litz.driver.builtin import builtin_plugins
from litz.errors import UnknownOptionError
from litz.pipeline import make_compiler
from litz_numerics.exact import CONDITIONS, exact_table
from litz_plugins import make_plugins
from litz_plugins.words import CORE_PASSES
from numerics.values import same_bits

STRICT = {"numerics.mode": "strict"}
aten = torch.ops.aten


def test_strict_mode_leaves_what_the_table_has() -> None:
    compiler, usual = make_compiler(None, STRICT), make_compiler()
    lowerings = compiler.plugins.lowerings(options=compiler.options)
    rules = compiler.plugins.decompositions(options=compiler.options)
    assert {aten.mul.Tensor, aten.cat.default, aten.view.default} <= lowerings.keys()
    assert not {aten.exp.default, aten.mean.dim, aten.mm.default, aten.bernoulli.p} & lowerings.keys()
    assert aten.masked_fill.Scalar in rules
    assert not {aten.native_layer_norm.default, aten._softmax.default, aten.gelu.default} & rules.keys()
    assert not compiler.plugins.templates(compiler.options)
    names = {item.name for item in compiler.plugins.passes(compiler.options)}
    assert CORE_PASSES.keys() - {"fold_frozen"} <= names <= exact_table().passes
    assert usual.plugins.lowerings(options=usual.options).keys() == usual.plugins.lowerings().keys()


def test_random_numbers_are_eagers_unless_the_user_says_otherwise() -> None:
    assert make_compiler(None, STRICT).options.fallback_random
    assert not make_compiler().options.fallback_random
    assert not make_compiler(None, {**STRICT, "fallback_random": False}).options.fallback_random


def test_without_the_dist_the_option_is_an_error_that_names_it() -> None:
    plugins = make_plugins(builtin_plugins(), entry_points=[])
    with pytest.raises(UnknownOptionError, match="plugins_numerics"):
        make_compiler(None, STRICT, plugins)


def test_the_table_names_ops_and_passes_that_there_are() -> None:
    table = exact_table()
    for _, name in table.rows:
        base, _, overload = name.partition(".")
        found = getattr(torch.ops, base, None) if base == "prims" else getattr(aten, base, None)
        found = getattr(found, overload) if base == "prims" else found
        assert found is not None, name
        if base != "prims" and overload:
            assert overload in found.overloads(), name
    assert {row.when for row in table.rows.values()} - {""} == CONDITIONS.keys()
    compiler = make_compiler(None, {"collectives.verify_plan": True})
    known = {item.name for item in compiler.plugins.passes(compiler.options)}
    assert table.passes <= known | CORE_PASSES.keys() | {"round_each", "name_torchs_kernels"}


def test_each_half_value_is_rounded_where_eager_stores_it() -> None:
    x, y = torch.randn(2, 999).bfloat16()
    product = torch.compile(lambda x, y: (x * y + x) * y - x, backend="litz", options=STRICT)
    assert same_bits(product(x, y), (x * y + x) * y - x)


def test_what_is_left_to_torch_is_on_record_with_its_estimate() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * 2) + x @ x

    x = torch.randn(32, 32)
    with report.collect() as reports:
        assert same_bits(torch.compile(f, backend="litz", options=STRICT)(x), f(x))
    said = {d.chosen: d for d in reports[0].decisions if d.chosen.startswith("torch's")}
    assert said["torch's gelu.default"].reason == (
        "not strict-exact here, so torch's own kernel runs; it reads and writes 8192 bytes"
    )
    assert "library" in said["torch's mm.default"].reason


def test_gradients_of_a_value_used_several_times_are_added_in_eagers_order() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        parts = [x * scale for scale in (1.1, 0.3, 7.7, -5.3, 1e4, -1e4)]
        return sum((part * part).tanh() if n % 2 else part.exp() for n, part in enumerate(parts)).sum()

    x = torch.randn(501, dtype=torch.float32, requires_grad=True)
    (wanted,) = torch.autograd.grad(f(x), x)
    (found,) = torch.autograd.grad(torch.compile(f, backend="litz", options=STRICT)(x), x)
    assert same_bits(found, wanted)


def test_dropout_draws_as_eager() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(17, 33), torch.nn.Dropout(0.3), torch.nn.Softmax(-1)).train()
    compiled, x = torch.compile(layer, backend="litz", options=STRICT), torch.randn(9, 17)
    torch.manual_seed(3)
    wanted = layer(x)
    torch.manual_seed(3)
    assert same_bits(compiled(x).detach(), wanted.detach())


def test_an_assertion_that_nobody_reads_is_made() -> None:
    """torch drops the overload without a message."""

    def f(x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        torch._assert_async(truth & ~truth)
        return x + 1

    with pytest.raises(RuntimeError, match="nonzero value"):
        torch.compile(f, backend="litz", options=STRICT)(torch.ones(3), torch.tensor(True))


def test_deterministic_algorithms_are_obeyed() -> None:
    """Strict mode calls torch's kernel, which raises where it has no deterministic form, as in eager."""

    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return (x * 2).put(at, x[:2])

    x, at = torch.randn(64), torch.tensor([3, 5])
    compiled = torch.compile(f, backend="litz", options=STRICT)
    assert same_bits(compiled(x, at), f(x, at))
    torch.use_deterministic_algorithms(True)
    try:
        for function in (f, compiled):
            with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
                function(x, at)
    finally:
        torch.use_deterministic_algorithms(False)
