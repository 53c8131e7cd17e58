"""Statements that multiply and add: products with few rows and stored weights, products of views, attention,
convolutions with a bias.

Operands are mostly new inputs: what is at hand seldom has sizes that fit. Attention with bodies (flex_attention) is in
programs that dynamo captures, which alone gives its bodies to a backend.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.attention.flex_attention as flex

from .operations import Draft, Draw, operation, operation_on, some

# Eager's own call would compile itself anew for each statement.
flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True

TYPES = (torch.float32,) * 3 + (torch.bfloat16,) * 3 + (torch.float16, torch.float64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2)
GROUPS = (4, 8, 16)
"""Columns of a weight that share a scale."""

# {0}: x (rows, k); {1}: the weight (n, k); {2}: a scale for each of its rows, or groups of them; {3}: a zero point.
BY_ROW = (
    "torch.nn.functional.linear({0}, {1}.to({0}.dtype)) * ({2} / 64)",
    "torch.nn.functional.linear({0}, {1}.to({0}.dtype) * ({2} / 64)[:, None])",
    "{0} @ ({1}.t().to({0}.dtype) * ({2} / 64))",
    "torch.nn.functional.linear({0}, ({1}.to({0}.dtype) - {3}[:, None]) * ({2} / 64)[:, None])",
    "torch.nn.functional.linear({0}, {1}.to({0}.dtype), {2})[:, None]",
    "({0} @ {1}.mT.to({0}.dtype)) * ({2} / 64) + {3}",
    "torch.nn.functional.silu(torch.nn.functional.linear({0}, {1}.to({0}.dtype)) * ({2} / 64))",
)
UNPACKED = (
    "torch.stack(({0} & 15, {0} >> 4), -1).flatten(1)",
    "torch.stack(({0} >> 4, {0} & 15), dim=-1).reshape({0}.size(0), -1)",
    "torch.cat(({0} & 15, {0} >> 4), 1)",
    "torch.cat(({0} % 16, {0} // 16), -1)",
)
"""Bytes (n, k / 2) as digits (n, k), two from each."""
BY_GROUP = (
    "torch.nn.functional.linear({0}, (({1}.unflatten(1, (-1, {4})).to({0}.dtype) - 8) * ({2} / 64)).flatten(1))",
    "{0} @ (({1}.unflatten(1, (-1, {4})).to({0}.dtype) - {3}[:, None, None]) * ({2} / 64)).flatten(1).t()",
    "torch.nn.functional.linear({0}, ({1}.to({0}.dtype) - 8) * ({2} / 64).repeat_interleave({4}, 1).flatten(1))",
)


@operation(1.5)
def product_of_stored_weights(draw: Draw) -> Draft | None:
    """Multiplies few rows, as in decoding, by weights that are stored in 8 bits, as integers or float8."""
    x, compute, k = _few_rows(draw)
    n = draw.rng.choice([1, 3, 8, 17, 33, 64])
    dtype = draw.rng.choice([torch.int8, torch.int8, torch.uint8, *FLOAT8])
    weight, scale, zero = draw.input((n, k), dtype), draw.input((n,), compute), draw.input((n,), compute)
    return Draft(draw.rng.choice(BY_ROW).format(x, weight, scale, zero), rough=True)


@operation(1.5)
def product_of_packed_weights(draw: Draw) -> Draft | None:
    """Multiplies few rows by weights of 4 bits, two to a byte, with a scale for each group of columns."""
    x, dtype, k = _few_rows(draw, even=True)
    n, group = draw.rng.choice([1, 3, 8, 17, 33]), draw.rng.choice([g for g in (*GROUPS, k) if k % g == 0])
    weight = draw.input((n, k // 2), torch.uint8, "index", 256)
    scale, zero = draw.input((n, k // group, 1), dtype), draw.input((n,), dtype)
    digits = draw.rng.choice(UNPACKED).format(weight)
    return Draft(draw.rng.choice(BY_GROUP).format(x, digits, scale, zero, group), rough=True)


def _few_rows(draw: Draw, even: bool = False) -> tuple[str, torch.dtype, int]:
    """The left side of a product, at hand or new, its dtype and its columns."""
    fits = draw.any(
        lambda t: t.dtype in TYPES and t.dim() == 2 and 1 <= t.shape[0] <= 16 and t.shape[1] > 0 and t.shape[1] % 2 == 0
    )
    if fits is not None and draw.chance(0.5):
        value = draw.value(fits)
        return fits, value.dtype, int(value.shape[1])
    rows, dtype = draw.rng.randint(1, 16), draw.rng.choice(TYPES)
    k = draw.rng.choice([8, 16, 32, 64, 96, 128] if even else [5, 8, 16, 31, 64, 100, 128])
    return draw.input((rows, k), dtype), dtype, k


# {0}: a tensor (..., m, k) of rank 2 or more; {1}: one (k, n); {2}: one (n, k), {3}: one (2 k, n).
PRODUCTS = (
    "{0} @ {1}", "{0} @ {2}.mT", "{0} @ {3}[::2]", "{0} @ {3}.narrow(0, 1, {0}.size(-1))", "{0} @ {0}.mT",
    "torch.matmul({1}.mT, {0}.mT)", "torch.matmul({0}[..., :1, :], {1})", "({0} @ {1}[:, :1].expand(-1, 3)).relu()",
    "torch.matmul({0}, {1}.expand(2, *([1] * ({0}.dim() - 2)), -1, -1))", "{0} @ {1}[:, 0]", "{2}[0] @ {0}.mT",
    "torch.matmul({0}.unsqueeze(0), {1}.expand(3, -1, -1).unsqueeze(1))", "{0}.flip(-1) @ {1}",
    "{0}.mT.contiguous().mT @ {1}", "({0} * 2) @ ({1} + 1)", "torch.einsum('...ij,kj->...ik', {0}, {2})",
    "torch.einsum('...ij,jk->...ki', {0}, {1})", "torch.nn.functional.linear({0}, {2}, {2}[:, 0])",
    "torch.nn.functional.gelu(torch.nn.functional.linear({0}, {2}))", "({0} @ {1}).softmax(-1)",
    "{0} @ torch.cat([{1}[:1], {1}[1:]])", "torch.relu({0} @ {1}) * ({0} @ {2}.mT)",
)  # fmt: skip
BATCHED = (
    "torch.bmm({0}, {0}.mT)", "torch.bmm({0}, {1}.expand({0}.size(0), -1, -1))",
    "torch.bmm({0}, {2}.mT.unsqueeze(0).repeat({0}.size(0), 1, 1))", "torch.bmm({0}.transpose(1, 2), {0})",
    "torch.bmm({0}[:1].expand(3, -1, -1), {1}.expand(3, -1, -1))",
    "torch.baddbmm({0}[:, :, :1], {0}, {1}.expand({0}.size(0), -1, -1), beta=0.5, alpha=0.25)",
    "torch.bmm({0}[:, ::2], {1}.expand({0}.size(0), -1, -1))",
)  # fmt: skip
ADDED = (
    "torch.addmm({2}[:, 0], {0}, {1})", "torch.addmm({0}[:, :1], {0}, {1}, beta=2, alpha=0.5)",
    "torch.addmm({2}[:, 0], {0}, {2}.t()).relu()", "torch.mv({0}, {1}[:, 0])", "torch.outer({0}[:, 0], {1}[0])",
)  # fmt: skip

_factor = some(lambda t: t.dtype in TYPES and t.dim() >= 2 and 0 < t.numel() < 3000 and t.shape[-1] <= 130)


@operation_on(_factor, 2.0)
def product_of_views(draw: Draw, name: str) -> Draft | None:
    """Multiplies operands that are transposed, sliced, expanded or broadcast."""
    value = draw.value(name)
    k, n = int(value.shape[-1]), draw.rng.choice(draw.pool)
    n = n if 0 < n < 70 else 5
    sizes = {1: (k, n), 2: (n, k), 3: (2 * k, n)}
    text = draw.rng.choice({2: (*PRODUCTS, *ADDED), 3: (*PRODUCTS, *BATCHED)}.get(value.dim(), PRODUCTS))
    others = {number: draw.input(size, value.dtype) for number, size in sizes.items() if f"{{{number}}}" in text}
    text = text.format(name, *(others.get(number, "") for number in sizes))
    return Draft(text, rough=True, deep=value.dtype == torch.float64)


# {0}: a tensor (..., m, k); {1}: one (k, n); {2}: one (n, k).
WRITTEN_PRODUCTS = (
    "({0}[..., None, :] * {2}).sum(-1)", "({0}[..., None] * {1}).sum(-2)", "({0}.unsqueeze(-2) * {2}).mean(-1)",
    "({0}[..., None, :] * {2}).sum(-1, keepdim=True)", "({0}[..., None, :] * {2} * {2}[0]).sum(-1) * 0.5",
    "({0}[..., None, :].float() * {2}.float()).sum(-1).to({0}.dtype)", "({0}[..., None, ::2] * {2}[:, ::2]).sum(-1)",
    "({0}[..., None] * {2}.mT.contiguous()).sum(dim=-2, dtype=torch.float64)", "({0}[..., None] * {1}).float().sum(-2)",
    "(lambda t: t.sum(-1) + t[..., 0])({0}[..., None, :] * {2})", "({0}[..., None] * {0}[..., None, :]).sum(-3)",
    "({0}[..., None, :] * {2}).to(torch.bfloat16).sum(-1)", "({0}[..., None, :] * {2}).sum((-1, 0)).relu()",
)  # fmt: skip
EDGES = (17, 33, 64, 72)
"""Rows, columns and terms, of which products of the larger ones are a library's."""


@operation(0.7)
def written_product(draw: Draw) -> Draft | None:
    """Multiplies matrices by broadcasting and a sum."""
    rng = draw.rng
    dtype, (m, n, k) = rng.choice(TYPES), (rng.choice(EDGES) for _ in range(3))
    if draw.chance(0.3):
        m = n = k = EDGES[-1]
    batch = rng.choice([(), (), (2,)])
    x = draw.input((*batch, m, k), dtype) if draw.chance(0.6) else f"{draw.input((*batch, k, m), dtype)}.mT"
    text = rng.choice(WRITTEN_PRODUCTS)
    others = {at: draw.input(size, dtype) for at, size in ((1, (k, n)), (2, (n, k))) if f"{{{at}}}" in text}
    return Draft(text.format(x, *(others.get(at, "") for at in (1, 2))), rough=True, deep=dtype == torch.float64)


# {0}, {1}, {2}: query (b, h, l, d), key and value (b, h / group, s, d); {3}: the group.
REPEATED = (
    "{0}.repeat_interleave({1}, 1)", "{0}.repeat_interleave({1}, dim=1)",
    "{0}[:, :, None].expand(-1, -1, {1}, -1, -1).flatten(1, 2)", "torch.repeat_interleave({0}, {1}, dim=-3)",
)  # fmt: skip
MASKS = (
    "torch.ones({0}.size(2), {1}.size(2), dtype=torch.bool, device={0}.device).tril({1}.size(2) - {0}.size(2))",
    "(torch.arange({1}.size(2), device={0}.device) <= 3)[None, None, None]", "({2} > -3)", "({2} > -3)[:, :1]",
    "({2} > -3)[:, :, :1].expand(-1, -1, {0}.size(2), -1)", "{2}", "{2}[:1, :1]", "{2}[:, :, :1]", "{2} * 0.5 + 1",
    "{2}.masked_fill({2} < -2, -inf)", "{2}.mT.contiguous().mT", "{2}.flip(-1)[0, 0]",
    "torch.where({2} > 0, 0.0, {2})",
)  # fmt: skip
"""{0}, {1}: query and key; {2}: an input (b, h, l, s)."""
WRITTEN_OUT = (
    "torch.softmax({0} @ {1}.mT * 0.25 + {3}, -1) @ {2}",
    "torch.softmax((({0} @ {1}.mT) / 4).masked_fill({3} < -2, -1e4), -1) @ {2}",
    "torch.softmax(torch.tanh({0} @ {1}.mT / 16) * 4, dim=-1, dtype=torch.float32).to({0}.dtype) @ {2}",
    "({0} @ {1}.mT * 0.1).softmax(-1) @ {2}",
)
"""{3}: an input (b, h, l, s)."""


@dataclass(frozen=True)
class _Heads:
    """Query, key and value as text, each (batch, heads, length, width) by its size, and what they have."""

    q: str
    k: str
    v: str
    batch: int
    heads: int
    group: int
    rows: int
    columns: int
    dtype: torch.dtype


def _heads(draw: Draw) -> _Heads:
    """New inputs, dense or as a projection leaves them: the heads beside the positions."""
    rng = draw.rng
    batch, keys, group = rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.choice([1, 1, 2, 3])
    rows, columns, width = rng.choice([1, 1, 4, 9, 33]), rng.choice([1, 5, 16, 40]), rng.choice([4, 8, 16])
    dtype = rng.choice(TYPES)

    def make(heads: int, length: int) -> str:
        roll = rng.random()
        if roll < 0.4:
            return f"{draw.input((batch, length, heads, width), dtype)}.transpose(1, 2)"
        if roll < 0.55:
            return f"{draw.input((batch, heads, length + 3, width), dtype)}[:, :, 2:-1]"
        if roll < 0.65:
            return f"{draw.input((1, heads, length, width), dtype)}.expand({batch}, -1, -1, -1)"
        return draw.input((batch, heads, length, width), dtype)

    texts = make(keys * group, rows), make(keys, columns), make(keys, columns)
    return _Heads(*texts, batch, keys * group, group, rows, columns, dtype)


def _repeated(draw: Draw, at: _Heads) -> tuple[str, str]:
    """Key and value for each head of the query."""
    if at.group == 1:
        return at.k, at.v
    text = draw.rng.choice(REPEATED)
    return text.format(at.k, at.group), text.format(at.v, at.group)


@operation(1.5)
def attention(draw: Draw) -> Draft | None:
    """Applies scaled_dot_product_attention with masks, biases and repeated keys as in models; or written out."""
    at = _heads(draw)
    scores = (at.batch, at.heads, at.rows, at.columns)
    if draw.chance(0.3):
        text = draw.rng.choice(WRITTEN_OUT)
        other = draw.input(scores, at.dtype) if "{3}" in text else ""
        return Draft(text.format(at.q, *_repeated(draw, at), other), rough=True, deep=at.dtype == torch.float64)
    arguments, (k, v) = [], _repeated(draw, at)
    if draw.chance(0.3):
        k, v = at.k, at.v
        arguments.append("enable_gqa=True")
    roll = draw.rng.random()
    if roll < 0.6:
        mask = draw.rng.choice(MASKS)
        other = draw.input(scores, at.dtype) if "{2}" in mask else ""
        arguments.append(f"attn_mask={mask.format(at.q, at.k, other)}")
    elif roll < 0.8:
        arguments.append("is_causal=True")
    if draw.chance(0.3):
        arguments.append(f"scale={draw.rng.choice(['0.25', '0.5', '0.1'])}")
    call = ", ".join([at.q, k, v, *arguments])
    text = f"torch.nn.functional.scaled_dot_product_attention({call})"
    return Draft(text, rough=True, deep=at.dtype == torch.float64)


# Bodies over s, the score, and b, h, i, j: batch, head, query and key. c is captured: (b, h, l, s).
SCORES = (
    "", "", "s + (j - i) * 0.125", "8 * torch.tanh(s / 8)", "s + c[b, h, i, j]", "s + c[0, h, 0, 0]", "s * 0.5",
    "torch.where(i >= j, s, -1e4)", "s - torch.abs(i - j) * c[0, h, 0, 0].abs()", "torch.where(i % 2 == 0, s, s * 0.5)",
)  # fmt: skip
CONDITIONS = (
    "", "", "i >= j", "(i >= j) & (i - j < 4)", "j < 5", "(i - j).abs() <= 3", "i + 2 >= j",
    "(i // 4) == (j // 4)", "(i >= j) | (j < 2)", "c[b, h, i, j] > -3", "(i >= j) & (c[b, h, i, j] < 3)",
)  # fmt: skip
"""A row without any True gives 0. (Dynamo cannot trace a captured tensor with a number among its indices.)"""


@operation(15.0, kind="data")
def attention_with_bodies(draw: Draw) -> Draft | None:
    """Applies flex_attention, forward, with bodies for scores and masks."""
    at = _heads(draw)
    score, condition = draw.rng.choice(SCORES), draw.rng.choice(CONDITIONS)
    captured = draw.input((at.batch, at.heads, at.rows, at.columns), at.dtype)
    k, v = (at.k, at.v) if draw.chance(0.6) else _repeated(draw, at)
    arguments = ["q", "k", "v", *([f"score_mod=lambda s, b, h, i, j: {score}"] if score else [])]
    if condition:
        sizes = [str(n) if f"{axis}," in condition else "None" for axis, n in (("b", at.batch), ("h", at.heads))]
        made = f"lambda b, h, i, j: {condition}, {', '.join(sizes)}, {at.rows}, {at.columns}, device=q.device"
        arguments.append(f"block_mask=torch.nn.attention.flex_attention.create_block_mask({made})")
    if at.group > 1 and k == at.k:
        arguments.append("enable_gqa=True")
    if draw.chance(0.3):
        arguments.append("scale=0.5")
    call = f"torch.nn.attention.flex_attention.flex_attention({', '.join(arguments)})"
    return Draft(f"(lambda q, k, v, c: {call})({at.q}, {k}, {v}, {captured})", rough=True)


# {0}: a convolution's result (b, o, ...); {1}: (o); {2}: as many 1s as it has pixel dimensions.
USERS = (
    "{0}", "torch.relu({0})", "torch.nn.functional.silu({0})", "{0} * 0.5 + 1", "{0}.clamp(-1, 2)",
    "torch.nn.functional.gelu({0})", "{0} * {1}.reshape(-1, {2})", "torch.tanh({0} / 8)",
    "torch.nn.functional.hardswish({0})", "({0}).sum(1)", "({0}).flatten(2).mT + {1}",
    "torch.nn.functional.batch_norm({0}, {1} * 0.5, {1}.abs() + 1)", "torch.nn.functional.leaky_relu({0}, 0.25)",
    "(lambda y: y + torch.relu(y))({0})",
)  # fmt: skip


@operation(1.2)
def convolution(draw: Draw) -> Draft | None:
    """Convolves lines, images or volumes: plain, transposed, grouped or channels last, with a bias and what follows
    it."""
    rng, dims = draw.rng, draw.rng.choice([1, 2, 2, 2, 2, 3])
    groups = rng.choice([1, 1, 1, 2, 3])
    inputs, outputs = groups * rng.choice([1, 2, 4]), groups * rng.choice([1, 2, 4])
    batch, dtype = rng.choice([1, 2]), rng.choice([t for t in TYPES if t != torch.float16])
    taps = [rng.choice([1, 2, 3]) for _ in range(dims)]
    size = [rng.choice([4, 5, 8] if dims > 2 else [5, 7, 12]) for _ in range(dims)]
    transposed = draw.chance(0.25)
    weight_size = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    x, weight = draw.input((batch, inputs, *size), dtype), draw.input((*weight_size, *taps), dtype)
    bias = draw.input((outputs,), dtype)
    if dims == 2 and draw.chance(0.4):
        x, weight = (f"{name}.contiguous(memory_format=torch.channels_last)" for name in (x, weight))
    call = f"torch.nn.functional.conv{'_transpose' if transposed else ''}{dims}d"
    options = [f"stride={rng.choice([1, 1, 2])}", f"padding={rng.choice([0, 1])}", f"groups={groups}"]
    if not transposed:
        options.append(f"dilation={rng.choice([1, 1, 2])}")
    made = f"{call}({x}, {weight}, {bias if draw.chance(0.85) else None}, {', '.join(options)})"
    ones = ", ".join(["1"] * dims)
    return Draft(rng.choice(USERS).format(made, bias, ones), rough=True)
