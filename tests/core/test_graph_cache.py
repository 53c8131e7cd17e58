"""The graph cache: what is found is what would be compiled, and nothing that has changed is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import graph_cache
from litz.cache import manifest
from litz.driver import stages
from litz.errors import StaleEntryError
from litz.report.step import NOWHERE
from litz_tools.text import report_text
from support.graph_cache import Guarding, Runs, called_with, of_product, product, with_plugin


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    with torch._functorch.config.patch(enable_autograd_cache=False):  # else graphs are found before litz has one
        yield


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


# What is found.


def test_a_graph_that_was_compiled_is_loaded(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    call = of_product()
    once = runs.run(call, product)
    assert runs.said == ["miss"]
    monkeypatch.setattr(stages, "prepare_graph", None)  # nobody gets there
    again = runs.run(call, product)
    assert runs.said == ["hit"]
    torch.testing.assert_close(again, once, rtol=0, atol=0)


def test_a_report_from_the_cache_says_what_was_decided(runs: Runs) -> None:
    call = of_product()
    runs.run(call, product)
    (first,) = runs.reports
    runs.run(call, product)
    (second,) = runs.reports
    assert second.plan is None and first.plan is not None
    assert (second.decisions, second.taken) == (first.decisions, first.taken)
    assert [replace(step, **NOWHERE) for step in first.steps] == [replace(step, **NOWHERE) for step in second.steps]
    assert second.contractions == first.contractions and second.externs == first.externs
    assert second.kernel_sources == first.kernel_sources and second.wrapper_path == first.wrapper_path
    assert all(path.is_file() for path in second.kernel_paths.values())
    for report, word in ((first, "miss"), (second, "hit")):
        (line,) = [line for line in report_text(report).splitlines() if line.startswith("graph cache")]
        assert line.split()[2] == word


def test_equal_graphs_of_a_process_share_one_code(runs: Runs) -> None:
    call = of_product()
    kept = [torch.compile]  # what is compiled lives on in dynamo's cache
    runs.run(call, product)
    first = torch.compile

    def same(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x @ w)
        return y.sum(1), y * 2

    runs.again(call, same)
    assert runs.said == ["hit"] and "of this process" in runs.reports[0].graph_cache
    assert kept and first


def test_training_gives_the_same_gradients(runs: Runs) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    )
    x, state = torch.randn(4, 3, 8, 8), {k: v.clone() for k, v in model.state_dict().items()}

    def step(compiled: Any) -> Any:
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        loss = compiled(x).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers())]

    eager = step(model)
    once = runs.run(step, model)
    assert runs.said == ["miss", "miss"]
    again = runs.run(step, model)
    assert runs.said == ["hit", "hit"]
    torch.testing.assert_close(again, once, rtol=0, atol=0)
    torch.testing.assert_close(again, eager, rtol=1e-4, atol=1e-5)


def test_a_backward_comes_again_where_the_graph_is_kept(runs: Runs) -> None:
    """What owns its inputs is handed copies then, from the cache too."""
    layer, x, labels = torch.nn.Linear(16, 2051), torch.randn(128, 16), torch.randint(0, 2051, (128,))

    def gradients(compiled: Any) -> Any:
        loss, found = compiled(x, labels), []
        for more in (True, False):
            layer.zero_grad(set_to_none=True)
            loss.backward(retain_graph=more)
            found.append([p.grad.clone() for p in layer.parameters()])
        return found

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(layer(x), labels)

    runs.run(gradients, loss)
    found = runs.run(gradients, loss)
    assert runs.said == ["hit", "hit"]
    assert any(json.loads((path / "graph.json").read_text())["overwritten"] for path in runs.entries())
    torch.testing.assert_close(found, gradients(loss))


def written(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x.mul_(2).add_(y)
    y.index_copy_(0, at, x[: at.shape[0]] + 1)
    return x.t()[1:]


def views(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x + y
    return x.view(-1), z, z[1:], z, y.expand(3, *y.shape), z.t(), 3, None


def strided(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.transpose(0, 1) + 1, (x @ y.t()).t(), torch.empty_strided((2, 3), (1, 2)).fill_(4)


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [written, views, strided])
def test_writes_strides_and_aliases_are_as_compiled(runs: Runs, fn: Any, dynamic: bool) -> None:
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    args = (x, y, torch.tensor([4, 0])) if fn is written else (x, y)
    call = called_with(*args)
    once = runs.run(call, fn, dynamic)
    again = runs.run(call, fn, dynamic)
    assert runs.said == ["hit"]
    expected = call(fn)
    for found in (once, again):
        torch.testing.assert_close(found, expected)
        tensors = [(a, b) for a, b in zip(_flat(found), _flat(expected)) if isinstance(a, torch.Tensor)]
        assert [a.stride() for a, _ in tensors] == [b.stride() for _, b in tensors]
        assert _aliases(found) == _aliases(expected)


def _flat(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def _aliases(value: Any) -> list[int]:
    storages = [leaf.untyped_storage()._cdata for leaf in _flat(value) if isinstance(leaf, torch.Tensor)]
    return [storages.index(storage) for storage in storages]


def test_constants_and_random_numbers_are_as_compiled(runs: Runs) -> None:
    table = torch.arange(12.0).view(3, 4).t()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.tensor([[1.0, 2.5], [0.25, 3.0]]) + table[:, :2].sum() + torch.rand_like(x[:, :2])

    def call(compiled: Any) -> Any:
        torch.manual_seed(3)
        return compiled(torch.ones(5, 2))

    once, again = runs.run(call, fn), runs.run(call, fn)
    assert runs.said == ["hit"]
    torch.testing.assert_close(again, once, rtol=0, atol=0)


# Sizes.


def test_dynamic_sizes_are_still_dynamic(runs: Runs) -> None:
    call = called_with(torch.randn(6, 8), torch.randn(8, 4))
    runs.run(call, product, True)

    def three(compiled: Any) -> Any:
        return [compiled(torch.ones(n, k), torch.ones(k, 4)) for n, k in ((6, 8), (9, 8), (3, 5))]

    found = runs.run(three, product, True)
    assert runs.said == ["hit"]
    torch.testing.assert_close(found, three(product))


def test_what_a_compile_took_for_granted_is_on_record_again(tmp_path: Path) -> None:
    runs = Runs(tmp_path, with_plugin(Guarding()))

    def sizes(*numbers: int) -> Any:
        return lambda compiled: [compiled(torch.ones(n, 3)) for n in numbers]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0] + 1

    runs.run(sizes(8), fn, True)
    assert json.loads((runs.entries()[0] / "graph.json").read_text())["guards"]
    found = runs.run(sizes(8, 16, 6, 10), fn, True)
    assert runs.said == ["hit", "miss"], "16 is granted; 6 is not, and is compiled for itself"
    torch.testing.assert_close(found, sizes(8, 16, 6, 10)(fn))


def test_other_hints_are_another_key(runs: Runs) -> None:
    for n in (6, 7):
        runs.run(called_with(torch.randn(n, 8), torch.randn(8, 4)), product, True)
        assert runs.said == ["miss"], "costs go by likely sizes"


def test_sizes_that_hang_on_data(runs: Runs) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero().sum(0) + x.sum()

    def call(compiled: Any) -> Any:
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            return [compiled(x) for x in (torch.tensor([0, 1, 0, 3]), torch.tensor([2, 1, 5, 3]))]

    runs.run(call, fn)
    found = runs.run(call, fn)
    assert set(runs.said) == {"hit"}
    torch.testing.assert_close(found, call(fn))


# Damage.


def damaged(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:-3])


@pytest.mark.ci_cases("graph.json", "manifest.json")
@pytest.mark.parametrize("name", ["graph.json", "wrapper.py", "key.json", "manifest.json"])
def test_a_damaged_entry_is_made_anew(runs: Runs, name: str) -> None:
    once = runs.run(call := of_product(), product)
    damaged(runs.entries()[0], name)
    again = runs.run(call, product)
    assert runs.said == ["miss"]
    torch.testing.assert_close(again, once)
    runs.run(call, product)
    assert runs.said == ["hit"]


def resummed(folder: Path) -> None:
    (folder / manifest.FILE).unlink()
    manifest.write(folder)


@pytest.mark.ci_cases("{}", "null")
@pytest.mark.parametrize("text", ["{}", "[]", '{"functions": {"f": "no_such_module:f"}}', "null"])
def test_an_entry_that_is_none_is_a_miss(runs: Runs, text: str) -> None:
    once = runs.run(call := of_product(), product)
    (folder,) = runs.entries()
    (folder / "graph.json").write_text(text)
    resummed(folder)
    again = runs.run(call, product)
    assert runs.said == ["miss"]
    torch.testing.assert_close(again, once)


def test_debug_mode_finds_a_stale_entry(runs: Runs) -> None:
    runs.run(of_product(), product)
    runs.run(of_product(), product, debug=True)
    assert runs.said == ["miss"], "it is compiled to be compared"
    (folder,) = runs.entries()
    kernel = next(folder.glob("*.cpp"))
    kernel.write_text(kernel.read_text().replace("return 0;", "return  0;"))
    resummed(folder)
    with pytest.raises(Exception) as caught:
        runs.run(of_product(), product, debug=True)
    error = caught.value
    assert isinstance(error, StaleEntryError) or "StaleEntryError" in str(error)


# What cannot be kept.


def test_frozen_weights_are_not_kept(runs: Runs) -> None:
    model = torch.nn.Linear(4, 3)

    def call(compiled: Any) -> Any:
        with torch.no_grad():
            return compiled(torch.ones(2, 4))

    runs.run(call, model, freezing=True)
    assert runs.said == ["not"] and "freezing" in runs.reports[0].graph_cache


def test_what_nobody_thought_of_is_no_reason_not_to_compile(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any) -> str:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("litz.graph_cache.lookup.graph_text", broken)
    call = of_product()
    torch.testing.assert_close(runs.run(call, product), call(product))
    assert "no such thing" in runs.reports[0].graph_cache


def test_objects_and_users_kernels_are_not_kept(runs: Runs) -> None:
    model = torch.nn.Linear(4, 3)

    def call(compiled: Any) -> Any:
        with torch.no_grad():
            return compiled(torch.ones(2, 4))

    def write(x: Any) -> Any:
        return model(x.add_(1)).clone()  # as in eager, by torch

    assert runs.run(call, lambda x: torch.cond(x.sum() > 0, lambda x: write(x).sin(), write, (x.clone(),))).shape
    assert runs.said == ["not"] and "TreeSpec, which no text tells" in runs.reports[0].graph_cache


def test_it_can_be_turned_off(runs: Runs) -> None:
    for _ in range(2):
        runs.run(of_product(), product, graph_cache=False)
        assert runs.said == ["off"]
    assert not runs.entries()


def test_without_a_disk_cache_nothing_is_kept(runs: Runs) -> None:
    for _ in range(2):
        runs.run(of_product(), product, cache=False)
        assert runs.said == ["miss"]


def test_keys_are_the_same_in_every_run(runs: Runs) -> None:
    keys = []
    for _ in range(2):
        runs.run(of_product(), product)
        keys.append(runs.reports[0].graph_cache.split()[1])
    assert keys[0] == keys[1] and graph_cache.Key(()).digest
