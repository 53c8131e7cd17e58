"""`python -m litz_tools.calibrate` measures the device that is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from litz.target import load_calibration
from litz_tools.calibrate import calibrate, main


def test_measuring_this_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "here.json"
    assert main(["--out", str(out), "--device", "cpu", "--quick"]) == 0
    figures = load_calibration(out).figures("cpu", "")
    assert {"bandwidth_gb_s", "launch_us", "matrix_tflops.fp32"} <= set(figures)
    assert "LITZ_CALIBRATION" in capsys.readouterr().out


def test_measuring_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "x.json"), "--device", "cuda"]) == 1
    assert "no CUDA device" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="only cpu and cuda"):
        calibrate("meta")
