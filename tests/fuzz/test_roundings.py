"""What the fuzzer's judge lets a result be off by: the roundings of its statements, and of what they are made of."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy
import pytest
import torch

from litz_testing.fuzz import contracting, layers
from litz_testing.fuzz.compare import Expected, complaints
from litz_testing.fuzz.gradients import expected_gradients
from litz_testing.fuzz.inputs import InputSpec, make_inputs
from litz_testing.fuzz.operations import Draw
from litz_testing.fuzz.program import FuzzProgram, Statement
from litz_testing.fuzz.reference import Reference, Rejected, reference_of
from litz_testing.fuzz.rounding import Rounding

F32, F64 = torch.float32, torch.float64


def test_a_gradient_counts_the_roundings_of_the_types_it_passes_through() -> None:
    inputs = (InputSpec((64,), torch.float64, 1), InputSpec((64,), torch.float64, 2))
    program = FuzzProgram(
        inputs,
        (Statement("v0", "x0.sum(0, dtype=torch.float32)", rough=True), Statement("v1", "x1 * 3")),
        ("v0", "v1"),
        grad=True,
    )
    first, second = expected_gradients(program, reference_of(program))
    assert first.dtypes == {torch.float64, torch.float32} and second.dtypes == {torch.float64}
    off = first.exact * (1 + 1e-6)
    assert not complaints([off], [first]) and complaints([off], [replace(first, dtypes=second.dtypes)])


def test_a_gradient_at_a_kink_counts_what_a_kernel_may_be_off_by() -> None:
    """logaddexp2(-1, -1) is 0, 1e-16 or -5e-17, by how a processor multiplies and adds: abs() goes either way."""
    lines = (
        Statement("v0", "torch.logaddexp2(x0, x0)", rough=True),
        Statement("v1", "x0 + 1"),
    )
    for last, at_kink in (("v0.abs() * 2", True), ("v1.abs() * 2", False)):
        program = FuzzProgram(
            (InputSpec((64,), torch.float64, 3),), (*lines, Statement("v2", last)), ("v2",), grad=True
        )
        (expected,) = expected_gradients(program, reference_of(program))
        off = (expected.noisy - expected.exact).abs() > 0.5
        kinks = make_inputs(program.inputs)[0] == -1
        assert kinks.any() and bool((off & kinks).any()) == at_kink and not bool((off & ~kinks).any())


def test_a_deep_statement_counts_the_roundings_of_its_ops() -> None:
    """Each of the three layers makes what the one before rounded a hundred times larger. In float64 eager is the judge
    itself: what it rounds shows against a wider type. done40b:3024 and done40g:713 were off by 1e-12 and 4.5e-14."""
    sizes = [(4, 3), (3, 3), (3, 3), (3, 3)]
    inputs = tuple(InputSpec(size, torch.float64, seed) for size, seed in zip(sizes, range(1, 5), strict=True))
    text = "layers(region_sine, x0, x1, x2, x3)"
    drifts, roundings = [], 64 * torch.finfo(torch.float64).eps
    for deep in (True, False):
        program = FuzzProgram(inputs, (Statement("v0", text, rough=True, deep=deep),), ("v0",), grad=True)
        found = reference_of(program)
        named = [Expected("v0", found.eager["v0"], found.exact["v0"], found.noisy["v0"])]
        named += expected_gradients(program, found)
        assert len(named) == 5
        drifts.append([float((row.noisy - row.exact).abs().max() / row.exact.abs().max()) for row in named])
    x, *weights = (value.numpy().astype("longdouble") for value in make_inputs(inputs))
    for w in weights:
        x = x + numpy.sin(x @ w) * x
    error = float(abs(found.eager["v0"].numpy() - x).max() / abs(x).max())
    assert drifts[1][0] < 1e-15 < error < 8 * drifts[0][0] + roundings < 1e-11
    assert all(8 * deep + roundings < 1e-9 and deep > 10 * flat for deep, flat in zip(*drifts, strict=True))


def test_a_deep_statement_rounds_in_its_own_type_beside_one_of_a_finer_type() -> None:
    """s94a:7350 had one of float64 beside it, and a gradient was off by 2.9e2 of float32's roundings."""
    sizes = [(4, 3), (3, 3), (3, 3)]
    drifts = []
    for beside in (torch.float32, torch.float64):
        inputs = [InputSpec(size, dtype, 1) for dtype in (torch.float32, beside) for size in sizes]
        texts = [f"layers(region_sine, x{n}, x{n + 1}, x{n + 2})" for n in (0, 3)]
        statements = tuple(Statement(f"v{n}", text, rough=True, deep=True) for n, text in enumerate(texts))
        program = FuzzProgram(tuple(inputs), statements, ("v0", "v1"), grad=True)
        rows = expected_gradients(program, reference_of(program))
        drifts.append([float((row.noisy - row.exact).abs().max() / row.exact.abs().max()) for row in rows])
    assert all(0.3 < b / a < 3 for a, b in zip(*(each[:3] for each in drifts), strict=True))
    assert max(drifts[1][3:]) < 1e-6 * min(drifts[0][3:])


def test_a_gradient_of_the_result_counts_how_that_is_rounded() -> None:
    """Of 1 - tanh ** 2 next to 1 a rounding of the tanh is all (s41avx2:1295)."""
    statement = Statement("v0", "torch.tanh(x0 + 10)", rough=True, deep=True)
    program = FuzzProgram((InputSpec((1,), torch.float64, 319219),), (statement,), ("v0",), grad=True)
    (row,) = expected_gradients(program, reference_of(program))
    named = replace(row, name="v0")
    weighted = float(row.eager)
    assert 0 <= abs(weighted) < 1e-10
    kernels = torch.tensor([weighted + 2 * torch.finfo(torch.float64).eps], dtype=torch.float64)
    assert not complaints([kernels], [named]) and complaints([kernels + 1e-13], [named])


def test_a_softmax_inside_a_statement_in_float64_counts_the_roundings_of_its_ops() -> None:
    """Of p - p ** 2 next to 1 a rounding of p is all that a gradient has, and in float64 eager is the judge itself
    (s51c0:670, under autocast, which leaves float64 alone). In narrower types eager's own error is on record."""
    rng, inputs = random.Random(5), (InputSpec((2, 2), F64, 903123), InputSpec((2, 4), F32, 2))
    for maker, narrow in ((layers.region, True), (contracting.product_of_views, False), (contracting.attention, False)):
        found = set()
        for _ in range(60):
            draw = Draw(rng, Reference(inputs), (3, 5), False, input_count=2)
            draft = maker(draw)
            if draft is not None and ("softmax" in draft.text or "attention" in draft.text):
                made = Reference((*inputs, *draw.new_inputs))
                made.step(Statement("v0", draft.text, rough=True))
                found.add((made.eager["v0"].dtype == F64, draft.deep))
        assert found == {(True, True), (False, narrow)}
    text = "torch.autocast(x0.device.type, torch.bfloat16)(lambda x: (x @ x.mT).softmax(-1))(x0)"
    program = FuzzProgram(inputs[:1], (Statement("v0", text, rough=True, deep=True),), ("v0",), grad=True)
    (row,) = expected_gradients(program, reference_of(program))
    assert not complaints([row.eager + 4.2e-16], [row]) and complaints([row.eager + 1e-13], [row])


def test_a_divergence_counts_how_its_terms_are_rounded() -> None:
    """s51a:3150 and s51n:1168: of a row and itself a divergence is 0, or what the roundings of its terms add up to."""
    rng = random.Random(0)
    for dtype, wrong in ((torch.bfloat16, 0.25), (F32, 1e-4)):
        for seed in range(12):
            inputs = (InputSpec((1, 5), dtype, seed),)
            drafts = (layers.loss(Draw(rng, Reference(inputs), (2, 3), False, input_count=1)) for _ in range(200))
            draft = next(each for each in drafts if each is not None and "kl_div" in each.text)
            statement = Statement("v0", draft.text, rough=draft.rough, deep=draft.deep)
            found = reference_of(FuzzProgram(inputs, (statement,), ("v0",)))
            expected = Expected("v0", found.eager["v0"], found.exact["v0"], found.noisy["v0"])
            (x,) = make_inputs(inputs)
            logs, target = x.log_softmax(1), x.softmax(1)
            one_kernel = (target.double() * (target.double().log() - logs.double())).sum().to(dtype)
            assert abs(float(found.exact["v0"])) < 1e-15 and not complaints([one_kernel], [expected])
            assert complaints([one_kernel + wrong], [expected])


def test_the_roundings_of_a_deep_statement_do_not_cancel() -> None:
    """s51n:1168: in one run the roundings of 25 terms may add up to 0.02 of one of them, and more is fair."""
    text = "torch.nn.functional.kl_div(x0.log_softmax(1), x0.flip(0).softmax(1), reduction='batchmean')"
    for seed in range(40):
        inputs = (InputSpec((5, 5), F32, seed, expanded=(0,)),)
        found = reference_of(FuzzProgram(inputs, (Statement("v0", text, rough=True, deep=True),), ("v0",)))
        drift = float((found.noisy["v0"] - found.exact["v0"]).abs()) / torch.finfo(F32).eps
        assert 0.1 < drift < 2


def test_what_cancels_in_a_narrower_type_may_be_off_by_its_terms_roundings() -> None:
    """The mean of a centred float64 tensor in float32 is 0 in eager, and a rounding of a partial sum with others."""
    centred = Statement("v0", "x0 - x0.mean()", rough=True)
    mean = Statement("v1", "torch.mean(v0, dtype=torch.float32)", rough=True)
    found = reference_of(FuzzProgram((InputSpec((112,), torch.float64, 1),), (centred, mean), ("v1",)))
    expected = [Expected("v1", found.eager["v1"], found.exact["v1"], found.noisy["v1"])]
    assert not complaints([torch.tensor(5e-9)], expected)
    assert complaints([torch.tensor(1e-3)], expected)


def test_zeros_without_memory_stay() -> None:
    """Autograd makes such gradients; a product that reads one ended the process (s52a:5022)."""
    with Rounding(0.5, torch.Generator().manual_seed(0)):
        zeros = torch._efficientzerotensor((2, 3))
        rest = torch.ones(3) / 3
    assert zeros._is_zerotensor() and zeros.shape == (2, 3)
    assert not torch.equal(rest, torch.ones(3) / 3)


def test_a_product_may_be_rounded_for_some_of_its_readers_alone() -> None:
    """s56g:1259: a GPU's kernel computed `x * 0.14` with the difference in one instruction, and again for the roll."""
    inputs = (InputSpec((1, 1), torch.int16, 672255),)
    product = Statement("v0", "x0 * 0.14", rough=True)
    loss = Statement("v1", "torch.nn.functional.huber_loss(v0, v0.roll(1, 0), reduction='none')", rough=True)
    program = FuzzProgram(inputs, (product, loss), ("v1",))
    found, alone = reference_of(program, contracts=True), reference_of(program)
    assert float(found.exact["v1"]) == float(alone.noisy["v1"]) == 0 < float(found.noisy["v1"].abs()) < 1e-7


@pytest.mark.parametrize("text, writes", [("v0 - v0", ""), ("v0.sub_(v0)", "v0")])
def test_a_product_may_be_read_as_it_was_before_it_was_rounded(text: str, writes: str) -> None:
    """s70g:109: a GPU's kernel took a rounded product from the product; the statement itself has one op."""
    program = FuzzProgram(
        (InputSpec((3,), F32, 1),),
        (Statement("v0", "x0 * 0.14", rough=True), Statement("" if writes else "v1", text, writes=writes, rough=True)),
        ("v0" if writes else "v1",),
    )
    found, alone = reference_of(program, contracts=True), reference_of(program)
    name = program.outputs[0]
    assert not found.exact[name].any() and not alone.noisy[name].any()
    assert 0 < float(found.noisy[name].abs().max()) < 1e-6 * float(found.exact["x0"].abs().max())


def test_a_number_of_a_wider_type_may_be_off_by_a_rounding_of_the_type_it_was_computed_in() -> None:
    """s70i:16426: the float32 sigmoid of one number, in float64, was off by 1.08 of its last place; the noise of that
    run was small."""
    statements = (Statement("v0", "torch.sigmoid(x0)", rough=True), Statement("v1", "v0.to(torch.float64)"))
    for seed in range(20):
        program = FuzzProgram((InputSpec((1,), F32, seed),), statements, ("v1",))
        reference = reference_of(program)
        assert reference.rounded_in == {"v0": frozenset(), "v1": frozenset({F32})}
        values = [run["v1"] for run in (reference.eager, reference.exact, reference.noisy)]
        expected = [Expected("v1", *values, reference.rounded_in["v1"])]
        step = 2.0**-23 * values[1]
        assert not complaints([values[1] + 2 * step], expected) and complaints([values[1] + 1000 * step], expected)


def test_what_an_op_subtracts_from_what_it_reads_may_be_another_rounding() -> None:
    """s72g:827: the logarithmic softmax of one element of a norm is 0, and on a GPU a rounding of the element."""
    norm = Statement("v0", "torch.nn.functional.group_norm(x0, 1, eps=0.1)", rough=True)
    program = FuzzProgram(
        (InputSpec((1, 1, 1, 3), F64, 386939),),
        (norm, Statement("v1", "torch.log_softmax(v0, 1)", rough=True)),
        ("v1",),
    )
    found = reference_of(program, contracts=True)
    expected = [Expected("v1", found.eager["v1"], found.exact["v1"], found.noisy["v1"])]
    assert not complaints([found.exact["v1"] + 3.8e-17], expected) and complaints([found.exact["v1"] + 1e-12], expected)


def test_terms_that_cancel_may_be_off_by_their_roundings() -> None:
    """s55m:18469: 42 centred halves add up to nothing but their roundings; the noise of one run had cancelled, too."""
    norm = Statement("v0", "torch.nn.functional.instance_norm(x0, eps=0.1)", rough=True)
    total = Statement("v1", "torch.nansum(v0, (0, 1, 2, 3))", rough=True)
    x = InputSpec((2, 1, 3, 7), torch.bfloat16, 679841)
    found = reference_of(FuzzProgram((x,), (norm, total), ("v1",)))
    expected = Expected("v1", found.eager["v1"], found.exact["v1"], found.noisy["v1"])
    assert not complaints([torch.tensor(0.0168, dtype=torch.bfloat16)], [expected])
    assert complaints([torch.tensor(0.5, dtype=torch.bfloat16)], [expected])


def test_gelu_adds_one_to_what_may_be_near_minus_one() -> None:
    """s75i:2368: -7e-5 of -4, in float64; one processor rounds tanh up and another down."""
    gelu = Statement("v0", "torch.nn.functional.gelu(x0, approximate='tanh')", rough=True)
    reference = Reference((InputSpec((1,), F64, 1),))
    for run in (reference.eager, reference.exact, reference.noisy):
        run["x0"].fill_(-4.0)
    reference.step(gelu)
    expected = [Expected("v0", reference.eager["v0"], reference.exact["v0"], reference.noisy["v0"])]
    assert not complaints([reference.exact["v0"] + 2.3e-16], expected)
    assert complaints([reference.exact["v0"] + 1e-13], expected)


def test_a_mean_that_is_taken_off_may_be_rounded_where_its_terms_are_not() -> None:
    """s80i:9863: of one half number, x - mean(x) is 0, or what the mean's rounding takes off an x in a register."""
    lines = (Statement("v0", "x0.sigmoid()", rough=True), Statement("v1", "v0 - v0.mean(0)", rough=True, centred=True))
    found = reference_of(FuzzProgram((InputSpec((1,), torch.float16, 3),), lines, ("v1",)))
    expected = [Expected("v1", found.eager["v1"], found.exact["v1"], found.noisy["v1"])]
    one = found.exact["v0"]
    assert not complaints([(one - one.half().double()).half()], expected)
    assert complaints([torch.full((1,), 0.01, dtype=torch.float16)], expected)


def test_a_backward_may_round_what_it_reads_otherwise_than_the_forward() -> None:
    """s80i:7183: exp(x - logsumexp(x)) with x near 400 computed anew in float32, the logarithm saved in bfloat16."""
    lines = (
        Statement("v0", "x0 * 96.3", rough=True),
        Statement("v1", "torch.logsumexp(v0, 0)", rough=True),
        Statement("v2", "v1 * 2", rough=True),
    )
    for dtype, wrong in ((torch.bfloat16, 96.0), (F32, 0.01)):
        program = FuzzProgram((InputSpec((33,), dtype, 5),), lines, ("v2",), grad=True)
        (row,) = expected_gradients(program, reference_of(program))
        x = make_inputs(program.inputs)[0]
        made = x.double() * 96.3
        kernels = torch.exp(made - made.logsumexp(0).to(dtype).double()) * 96.3 * 2 * -2
        assert not complaints([kernels.to(dtype)], [row])
        assert complaints([(kernels + wrong * 8).to(dtype)], [row])


def test_a_gradient_of_what_is_centred_may_be_off_by_the_roundings_of_its_terms() -> None:
    """s106i:4249: all terms of the first element's gradient come of one number, and add up to 0 but for roundings."""
    lines = (
        Statement("v0", "torch.where(x1, x2.narrow(0, 0, 1), x2).as_strided((3, 3), (2, 1), 1)"),
        Statement(
            "v1",
            "(v0 - v0.mean(0, keepdim=True)) * torch.rsqrt(v0.var(0, correction=0, keepdim=True) + 0.1)",
            rough=True,
            centred=True,
        ),
    )
    for dtype, off in ((F64, 9e-16), (F32, 5e-7)):
        sizes = ((9, 4), dtype, 275697), ((), torch.bool, 199566), ((9,), dtype, 1)
        program = FuzzProgram(tuple(InputSpec(*one) for one in sizes), lines, ("v1",), grad=True)
        row = expected_gradients(program, reference_of(program))[-1]
        assert not complaints([row.exact.to(dtype) + off], [row])
        assert complaints([row.exact.to(dtype) + 1000 * off], [row])


def test_tiny_numbers_are_judged_by_what_a_rounding_of_them_is() -> None:
    """A kernel that takes subnormal numbers for 0 is wrong, one that is off by the smallest number is not."""
    smaller = Statement("v0", f"x0 * {2.0**-60!r}", rough=True)
    for dtype, smallest in ((torch.float32, 2.0**-149), (torch.bfloat16, 2.0**-133)):
        program = FuzzProgram((InputSpec((8,), dtype, 1, "tiny"),), (smaller,), ("v0",))
        found = reference_of(program)
        expected = Expected("v0", found.eager["v0"], found.exact["v0"], found.noisy["v0"], tiny=True)
        assert 0 < float(found.exact["v0"].abs().max()) < 1e-37
        off = (found.exact["v0"] + 8 * smallest).to(dtype)
        assert not complaints([off], [expected])
        flushed = torch.zeros(8, dtype=dtype)
        assert not complaints([flushed], [replace(expected, tiny=False)])
        assert bool(complaints([flushed], [expected])) == (dtype == torch.float32)  # of bfloat16 eager is as far off


def test_huge_numbers_may_nearly_fill_their_type() -> None:
    squared = Statement("v0", "x0 * x0", rough=True)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        spec = InputSpec((8,), dtype, 1, "huge")
        assert make_inputs((spec,))[0].abs().max() > 1e18
        found = reference_of(FuzzProgram((spec,), (squared,), ("v0",)))
        expected = Expected("v0", found.eager["v0"], found.exact["v0"], found.noisy["v0"])
        assert not complaints([found.eager["v0"]], [expected])
        assert complaints([found.eager["v0"] * 1.1], [expected]) and complaints([found.eager["v0"] / 0], [expected])
        with pytest.raises(Rejected, match=r"large|overflow"):
            reference_of(FuzzProgram((spec,), (Statement("v0", "x0 * x0 * x0", rough=True),), ("v0",)))
        with pytest.raises(Rejected, match="large"):
            reference_of(FuzzProgram((replace(spec, kind="plain"),), (Statement("v0", "x0 * 1e30"),), ("v0",)))
