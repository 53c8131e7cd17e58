"""The benchmark of layouts runs, and its networks are the ones that they are named after."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
import torch

from support.layout_models import Residual
from support.no_gpu import gpu_hidden

sys.path.insert(0, str(Path(__file__).parents[2]))
with gpu_hidden():
    from benchmarks import convolutions, layouts, vision
    from benchmarks.turns import Turns

# torchvision's documentation has the same counts, in millions.
SIZES = {"resnet50": 25.56, "mobilenet_v3": 5.48, "efficientnet_b0": 5.29, "convnext_t": 28.59, "densenet121": 7.98}


@pytest.mark.parametrize("name", SIZES)
def test_networks_have_the_parameters_of_their_names(name: str) -> None:
    if name in ("resnet50", "efficientnet_b0", "convnext_t"):
        pytest.importorskip("transformers")
    with torch.device("meta"):
        model = vision.NETWORKS[name]()
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == SIZES[name]


@pytest.mark.nightly
def test_a_row_has_everyones_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layouts, "NETWORKS", {"tiny": Residual})
    monkeypatch.setattr(layouts, "BATCH", {"inference": 2, "training": 2})
    monkeypatch.setattr(layouts, "SIDE", 16)
    peers = ["eager", "eager last", "litz -", "litz"]
    kinds = ["--types", "float32", "--seconds", "0", "--peers", *peers]
    layouts.main(["--only", "tiny", *kinds, "--out", str(tmp_path / "out.json")])
    written = json.loads((tmp_path / "out.json").read_text())
    assert [(row["network"], row["mode"]) for row in written["rows"]] == [("tiny", "inference"), ("tiny", "training")]
    for row in written["rows"]:
        assert set(row["ms"]) == set(peers) and not row["failed"]
        assert max(row["error"].values()) < 1e-4
        assert row["convolutions"] >= 5
    assert "tiny" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.parametrize("name", convolutions.KINDS)
def test_each_kind_of_convolution_has_a_gradient(name: str) -> None:
    """The sizes of a backward are those of its forward."""
    kind = convolutions.KINDS[name]
    forward, backward = (convolutions.make_case(kind, "float32", which) for which in (False, True))
    with torch.device("meta"):
        image, weight = (torch.empty(size) for size in forward.sizes)
        result = torch.ops.aten.convolution(image, weight, None, *forward.parameters)
    assert backward.sizes == (tuple(result.shape), *forward.sizes)


@pytest.mark.nightly
def test_the_benchmark_of_convolutions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(convolutions, "KINDS", {"tiny": convolutions.Kind(4, 4, 8, 3)})
    convolutions.main(["--types", "float32", "--seconds", "0", "--out", str(tmp_path / "out.json")])
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["backward"] for row in rows] == [False, True] and all(min(row["us"]) > 0 for row in rows)
    assert "tiny" in capsys.readouterr().out


@pytest.mark.nightly
def test_nobody_measures_while_somebody_compiles(tmp_path: Path) -> None:
    done: list[str] = []
    compiled = threading.Event()

    def other(name: str, turn: str) -> threading.Thread:
        def take() -> None:
            with getattr(Turns(tmp_path, 2), turn)():
                done.append(name)
                compiled.set()

        thread = threading.Thread(target=take)
        thread.start()
        return thread

    turns = Turns(tmp_path, 2)
    with turns.compiling():
        measuring = other("measured", "measuring")
        compiling = other("compiled", "compiling")
        assert compiled.wait(10) and done == ["compiled"]
        compiling.join()
    measuring.join()
    with turns.measuring():
        compiling = other("compiled later", "compiling")
        assert not compiling.join(0.3) and done == ["compiled", "measured"]
    compiling.join()
    assert done == ["compiled", "measured", "compiled later"]


@pytest.mark.nightly
def test_who_has_no_patience_measures_beside_those_who_compile(tmp_path: Path) -> None:
    with Turns(tmp_path, 1).compiling(), Turns(tmp_path, 1, patience=0.1).measuring():
        assert (tmp_path / "slot0").exists()
