"""Graphs at the edge: what they return, what they take. Right results, through Extern where need be."""

from __future__ import annotations

import pytest
import torch

from support.compare import check, device_param, t

pytestmark = device_param


def test_a_graph_that_returns_its_input(device: str) -> None:
    x = t(4, 5, device=device)
    out = torch.compile(lambda x: (x, x + 1), backend="litz")(x)
    assert out[0] is x
    torch.testing.assert_close(out[1], x + 1)


def test_a_graph_that_returns_a_view_of_its_input(device: str) -> None:
    x = t(4, 5, device=device)
    out = torch.compile(lambda x: x.t()[1:] + 0 if False else x.t()[1:], backend="litz")(x)
    assert out.data_ptr() == x.t()[1:].data_ptr()
    assert out.stride() == x.t()[1:].stride()


def test_no_outputs(device: str) -> None:
    def f(x: torch.Tensor) -> None:
        x.add_(1)

    check(f, t(4, 5, device=device))


def test_nothing_at_all(device: str) -> None:
    check(lambda x: None, t(3, device=device))


def test_duplicated_outputs(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y, x, y.t()

    check(f, t(4, 5, device=device))


def test_outputs_that_share_memory_still_do(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.view(-1), y[1]

    x = t(4, 5, device=device)
    check(f, x)
    y, flat, row = torch.compile(f, backend="litz")(x)
    y.zero_()
    assert float(flat.abs().sum()) == 0 and float(row.abs().sum()) == 0


@pytest.mark.thorough  # tests/e2e/test_writes.py writes both of such inputs
def test_aliased_inputs(device: str) -> None:
    x = t(4, 4, device=device)

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    torch._dynamo.reset()
    ours, theirs = x.clone(), x.clone()
    torch.testing.assert_close(torch.compile(f, backend="litz")(ours, ours), f(theirs, theirs))
    torch.testing.assert_close(ours, theirs)
    ours, theirs = x.clone(), x.clone()
    torch.testing.assert_close(torch.compile(f, backend="litz")(ours, ours.t()), f(theirs, theirs.t()))
    torch.testing.assert_close(ours, theirs)


def test_swapped_inputs(device: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> None:
        c = a.clone()
        a.copy_(b)
        b.copy_(c + 1)

    check(f, t(4, 5, device=device), t(5, 4, device=device).t())


def test_zero_size(device: str) -> None:
    def f(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [y for x in xs for y in (x.sin() + 1, x.sum(), x.reshape(-1), torch.cat([x, x]))]

    check(f, *(t(*size, device=device) for size in ((0,), (0, 3), (3, 0, 2))))


def test_zero_dimensions_and_scalars(device: str) -> None:
    x, s = t(4, device=device), torch.tensor(2.5, device=device)
    check(lambda x, s, k, f: (x * s, s + k, x * f, s.exp(), x.sum()), x, s, 3, 0.5)


def test_inputs_on_two_devices(device: str) -> None:
    x, s = t(4, device=device), torch.tensor(2.5)
    check(lambda x, s: x * s + s, x, s)
    check(lambda x, s: (x + 1, s.sin()), x, t(3, 3, device="cpu"))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(4, 5, dtype=dtype, device=device)
    torch.manual_seed(0)

    def f(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [each for x in xs for each in of_one(x)]

    def of_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2 + 1j
        return y, y.abs() + 1, torch.view_as_real(y) * 2, torch.angle(y), torch.nan_to_num(y / x.real.round())

    torch._dynamo.reset()
    for ours, theirs in zip(torch.compile(f, backend="litz")(x, x.mT), f(x, x.mT), strict=True):
        torch.testing.assert_close(ours, theirs, check_stride=True)


def test_sparse_gradients(device: str) -> None:
    """Of an embedding: the gradient's graph makes a sparse tensor, and adds two where two layers share the weight."""
    embedding = torch.nn.Embedding(6, 3, sparse=True, device=device)
    weight, rows = embedding.weight, torch.tensor([1, 1, 4], device=device)

    def f(rows: torch.Tensor) -> torch.Tensor:
        return (embedding(rows).sin() * embedding(rows + 1)).sum()

    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="has sparse tensors"):
        (found,) = torch.autograd.grad(torch.compile(f, backend="litz", dynamic=False)(rows), weight)
    (wanted,) = torch.autograd.grad(f(rows), weight)
    assert found.layout == wanted.layout == torch.sparse_coo
    torch.testing.assert_close(found.to_dense(), wanted.to_dense())


def test_quantized(device: str) -> None:
    if device == "cuda":
        pytest.skip("quantized tensors are for the CPU")
    x = torch.quantize_per_tensor(torch.randn(4, 5), 0.1, 0, torch.qint8)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.dequantize() * 2

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="litz")(x), f(x))


@pytest.mark.thorough  # tests/e2e/test_float8.py has more of these
def test_float8_goes_through(device: str) -> None:
    x = torch.randn(4, 8, device=device).to(torch.float8_e4m3fn)
    torch._dynamo.reset()
    f = lambda x: x.to(torch.float32) * 2
    torch.testing.assert_close(torch.compile(f, backend="litz")(x), f(x))


def test_out_of_range_index_is_an_index_error(device: str) -> None:
    if device == "cuda":
        pytest.skip("on CUDA a device-side assert ends the process, as in eager")
    table = t(4, 3, device=device)
    compiled = torch.compile(lambda table, at: table[at] + 1, backend="litz")
    torch.testing.assert_close(compiled(table, torch.tensor([0, -1])), table[[0, -1]] + 1)
    with pytest.raises(IndexError):
        compiled(table, torch.tensor([0, 4]))


def test_a_misaligned_input(device: str) -> None:
    base = t(129, device=device)
    check(lambda x: x.sin() * 2, base[1:])
    compiled = torch.compile(lambda x: x.sin() * 2, backend="litz")
    torch.testing.assert_close(compiled(base[:128]), base[:128].sin() * 2)
    torch.testing.assert_close(compiled(base[1:]), base[1:].sin() * 2)


def test_a_misaligned_input_that_is_expanded(device: str) -> None:
    base = t(129, device=device)
    places = ((5, 7), (3, 0), 1), ((0, 7), (3, 0), 1), ((4, 3, 2), (0, 2, 1), 3)
    check(lambda x, y, z: (x.var(0), y.sum(0), z * 2), *(base.as_strided(*place) for place in places))


@torch.library.custom_op("litz_tests::two_of_each", mutates_args=())
def two_of_each(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((x, x + 1))


@two_of_each.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty_strided((2, *x.shape), (0, *x.stride()))


def test_a_fake_kernel_that_says_elements_share_memory(device: str) -> None:
    check(lambda x: two_of_each(x.sin()) * 2, t(3, 4, device=device))
