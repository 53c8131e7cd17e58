"""Small programs through torch.compile, against eager, with float64 as the judge."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from running import check, close, compiled, double

import litz_numpy
from litz_plugins.testing import check_plugin


def test_the_plugin_is_well_formed():
    assert check_plugin(litz_numpy, name="numpy").devices == ("cpu",)


def windows(x):
    return F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.interpolate(x, scale_factor=1.5, mode="bilinear")


def writes(x):
    x[1:].mul_(2)
    return x.add_(1).sum()


def scattered(x):
    at = torch.tensor([2, 0, 2])
    return (
        x.index_add(0, at, x[:3]),
        x.index_put((at,), x[:3], accumulate=True),
        x.scatter_reduce(0, at[:, None].expand(3, x.shape[1]), x[:3], "amax"),
    )


def halves(x):
    y = x.bfloat16()
    return y.softmax(-1), (y * 3).sum(0), x.half().exp(), y.float() - x


PROGRAMS = {
    "arithmetic": lambda x: (torch.sin(x) * 2 + x.abs().sqrt() - x**3, torch.erf(x), x.sigmoid(), torch.lgamma(x + 9)),
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(0), x.logsumexp(1)),
    "norms": lambda x: (F.layer_norm(x, x.shape[1:]), x.var(0, correction=0), x.std(1, correction=0), x.norm()),
    "extremes": lambda x: (x.max(1), x.argmin(0), x.amax(), x.clamp(-1, 1), torch.topk(x, 2).values),
    "scans": lambda x: (x.cumsum(0), x.cumsum(1), (x / 4).cumprod(1), x.cummax(1).values),
    "joins": lambda x: (torch.cat([x, x.flip(0)]), torch.stack([x, -x]), F.pad(x, (1, 2)), x.roll(1, 0), x.t().clone()),
    "indices": lambda x: (x[:, torch.tensor([2, 0])], x.gather(1, x.argsort(1)), F.one_hot(x.argmax(1), x.shape[1])),
    "selection": lambda x: (torch.where(x > 0, x, 2 * x), x.masked_fill(x < 0, 7), (x > 0).any(1), (x > 0).sum()),
    "whole numbers": lambda x: (lambda n: (n // 3, n % 4, n >> 1, n.to(torch.uint8), n.prod(1)))((x * 9).long()),
    "half types": halves,
    "windows": lambda x: windows(x[None, None].repeat(1, 2, 2, 2)),
    "writes": writes,
    "scattered": scattered,
    "made": lambda x: (torch.arange(5), torch.full((2, 3), 0.5), torch.eye(3), torch.linspace(0, 1, 7)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    torch.manual_seed(0)
    (report,) = check(PROGRAMS[name], torch.randn(5, 7))
    assert report.kernels_after


@pytest.mark.parametrize("name", ["arithmetic", "softmax", "norms", "joins", "selection", "half types"])
@pytest.mark.parametrize("shape", [(1, 1), (33, 65), (3, 0)], ids=str)
def test_odd_shapes(name, shape):
    if 0 in shape and name in ("norms", "softmax"):
        pytest.skip("eager has no value of nothing")
    torch.manual_seed(1)
    check(PROGRAMS[name], torch.randn(shape))


@pytest.mark.parametrize("name", ["arithmetic", "softmax", "norms", "extremes", "joins", "scattered", "windows"])
def test_sizes_that_are_known_when_called(name):
    torch.manual_seed(2)
    check(PROGRAMS[name], torch.randn(6, 10), dynamic=True)


def test_one_kernel_for_many_sizes():
    f = compiled(lambda x: x.softmax(-1) + x.shape[0], dynamic=True)
    for rows in (3, 8, 5):
        x = torch.randn(rows, 4)
        close(f(x), x.softmax(-1) + rows, x.double().softmax(-1) + rows)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_types(dtype):
    torch.manual_seed(3)
    check(lambda x: (F.gelu(x), x.mean(0), x.relu() @ x.t(), x.tanh().cumsum(1)), torch.randn(8, 12).to(dtype))


def test_random_numbers():
    torch.manual_seed(4)
    dropped, normal = compiled(lambda x: (F.dropout(x, 0.25), torch.randn_like(x)))(torch.ones(2000))
    assert abs(float(dropped.mean()) - 1) < 0.1 and dropped.unique().tolist() == [0, float(torch.tensor(4 / 3))]
    assert abs(float(normal.mean())) < 0.1 and abs(float(normal.std()) - 1) < 0.1


def test_an_index_out_of_range_is_an_error():
    table = torch.randn(4, 3)
    f = compiled(lambda at: table[at])
    assert torch.equal(f(torch.tensor([3, -4])), table[[3, 0]])
    with pytest.raises(IndexError, match="out of range for size 4"):
        f(torch.tensor([0, 4]))


def gradients(model, fn, *inputs):
    model.zero_grad()
    loss = fn(*inputs).square().mean()
    loss.backward()
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


def test_a_training_step():
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    x, exact = torch.randn(2, 3, 8, 8), double(model)
    ours = gradients(model, compiled(model), x)
    close(ours, gradients(model, model, x), gradients(exact, exact, x.double()))
