"""What `litz bisect --wrong` calls different: results against eager's, judged by float64 and by their dtype."""

import math

import pytest
import torch

from litz_tools.bisect.values import GRADIENTS, MOST_CALLS, TOLERANCE, Values


def compared(tmp_path, eager, mine, args=(), site="f", tolerance=None):
    """The rows of one call: what eager returns, and another function in litz's place."""
    file = str(tmp_path / "values.pt")
    writing = Values({"write": file}, None)
    exact = writing.exact(site, eager, args, {})
    writing.take(site, eager(*args), exact)
    assert writing.finish() == []
    reading = Values({"read": file}, tolerance)
    assert reading.exact(site, eager, args, {}) is None
    reading.take(site, mine(*args), None)
    return reading.finish()


def worst(*asked, **more):
    return compared(*asked, **more)[0]["ratio"]


X = torch.linspace(-3, 3, 1000)


def test_the_same_is_no_difference(tmp_path):
    several = lambda x: (x.exp(), [x > 0, {"n": x.long()}])
    assert worst(tmp_path, several, several, (X,)) <= 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_none_and_more_is_one(tmp_path, dtype):
    x = X.to(dtype)
    allowed = TOLERANCE[dtype]
    assert worst(tmp_path, torch.exp, lambda x: (x.double().exp() * (1 + 0.3 * allowed)).to(dtype), (x,)) <= 1
    assert worst(tmp_path, torch.exp, lambda x: (x.double().exp() * (1 + 3 * allowed)).to(dtype), (x,)) > 1


def test_what_eager_itself_gets_wrong_is_allowed(tmp_path):
    """By way of float16 eager is some 1e-4 away from float64: four times that is allowed."""
    (row,) = compared(tmp_path, lambda x: (x + 1).half().float() - 1, lambda x: x.clone(), (X,))
    assert 2 * TOLERANCE[torch.float32] < row["allowed"] < 20 * TOLERANCE[torch.float32]
    assert row["difference"] < 1e-6  # it is float64 that is compared with


@pytest.mark.parametrize(
    ("eager", "mine"),
    [
        (lambda x: x, lambda x: x[:-1]),
        (lambda x: x, lambda x: x.double()),
        (lambda x: x, lambda x: (x, x)),
        (lambda x: x.long(), lambda x: x.long() + 1),
        (lambda x: x > 0, lambda x: x >= 3),
        (lambda x: x / x.relu(), lambda x: torch.nan_to_num(x / x.relu())),
        (lambda x: x, lambda x: x.where(x > 0, math.nan)),
    ],
    ids=["shape", "dtype", "number", "integers", "booleans", "infinities", "NaNs"],
)
def test_what_is_wrong_by_any_measure(tmp_path, eager, mine):
    assert worst(tmp_path, eager, mine, (X,)) == math.inf


def test_a_tolerance_of_the_users(tmp_path):
    off = lambda x: x.exp() * 1.01
    assert worst(tmp_path, torch.exp, off, (X,)) > 1 and worst(tmp_path, torch.exp, off, (X,), tolerance=0.02) <= 1


def test_gradients_that_are_only_rounding(tmp_path):
    """The gradient of a bias before a normalization is 0 but for rounding: it is measured by the others."""
    large = torch.ones(4)
    noise = [1e-8 * torch.tensor([1.0, -2.0]), 1e-8 * torch.tensor([-3.0, 1.0])]
    rows = compared(tmp_path, lambda: {"w": large, "b": noise[0]}, lambda: {"w": large, "b": noise[1]}, site="backward")
    assert rows[0]["ratio"] <= 1
    wrong = GRADIENTS * torch.tensor([1.0, -2.0])
    assert worst(tmp_path, lambda: {"w": large, "b": wrong}, lambda: {"w": large, "b": -wrong}, site="backward") > 1
    assert worst(tmp_path, lambda: {"w": large, "b": noise[0]}, lambda: {"w": large, "b": noise[1]}) > 1  # no gradients


def test_empty_and_scalar_results(tmp_path):
    assert worst(tmp_path, lambda x: (x[:0], x.sum()), lambda x: (x[:0], x.sum()), (X,)) <= 1


def test_float64_is_not_asked_where_arguments_may_be_changed():
    values = Values({"write": "nowhere"}, None)

    class Cache:
        pass

    assert values.exact("f", lambda x, c: x, (X, Cache()), {}) is None
    assert values.exact("f", lambda x: torch.linalg.no_such_thing(x), (X,), {}) is None  # nor where it fails
    seen = []
    values.exact("f", lambda x: seen.append(x.add_(1)), (X.clone(),), {})
    assert seen[0].dtype == torch.float64
    before = torch.get_rng_state()
    values.exact("f", lambda x: torch.rand_like(x), (X,), {})
    assert torch.equal(before, torch.get_rng_state())


def test_an_argument_that_is_written_is_left_alone():
    x = X.clone()
    Values({"write": "nowhere"}, None).exact("f", lambda x: x.mul_(2), (x,), {})
    assert torch.equal(x, X)


def test_so_many_calls_are_kept(tmp_path):
    file = str(tmp_path / "v.pt")
    writing = Values({"write": file}, None)
    for n in range(MOST_CALLS + 5):
        writing.take("f", X + n, None)
    writing.finish()
    reading = Values({"read": file}, None)
    for n in range(MOST_CALLS + 5):
        reading.take("f", X + n + (n == MOST_CALLS - 1), None)
    rows = reading.finish()
    assert (
        len(rows) == MOST_CALLS and rows[0]["call"] == MOST_CALLS - 1 and rows[0]["ratio"] > 1 and rows[1]["ratio"] == 0
    )
