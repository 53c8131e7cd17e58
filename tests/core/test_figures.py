"""Figures of devices are data: the code has no measured number, data files say where each is from, and every figure can
be set."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import io
import os
import pickle
import re
import shlex
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from core.numeric_constants import CONSTANTS, LITERALS, WHOLE_MODULES
from litz.schedule.estimate import EstimateFigures
from litz.target import CalibrationError, FiguresError, Room, data, figure_of, figures_of, target_named, target_of
from litz.target.describe import cuda_target
from litz.target.devices import all_specs, families
from litz_contractions.products.rows import RowsFigures
from litz_plugins import Figures, Target
from litz_tools.trials import TRIALS

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core/src/litz"
OWN = ("contractions", "cudagraphs", "operators", "passes", "triton_kernels")
"""Plugins that decide what runs on a device."""
MODULES = [*CORE.rglob("*.py"), *(file for name in OWN for file in ROOT.glob(f"plugins_{name}/src/**/*.py"))]
FOLDERS = [CORE / "target/figures", *ROOT.glob("plugins_*/src/*/figures")]
FILES = sorted(file for folder in FOLDERS for file in folder.rglob("*.toml"))
SAID = {"value", "source", "date", "command"}
UNITS = re.compile(
    "_(us|ns|bytes|gb_s|gflops|flops|share|shares|times|kernels|pieces|blocks|rows|columns|values|elements|registers|warps"
    "|threads|processes|processors|programs|nodes|buffers|loads|loops|products|terms|steps|tiles|instructions|outputs|keys|stored|measured)(_|$)"
)
"""Words of a figure's name that say what it counts."""


# ------------------------------------------------------------------------------------------------- no numbers in code


def constants(file: Path) -> Iterator[str]:
    """The names of a module's constants that are made of numbers."""
    for statement in ast.parse(file.read_text()).body:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        numbers = (each.value for each in ast.walk(statement.value) if isinstance(each, ast.Constant))
        if any(isinstance(each, (int, float)) and not isinstance(each, bool) for each in numbers):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def test_numeric_constants_are_no_measurements() -> None:
    """A constant that is no figure of a device has a line in `numeric_constants.py`, under why it is none."""
    found = {f"{file.stem}.{name}" for file in MODULES for name in constants(file)}
    lines = (line.split() for text in CONSTANTS.values() for line in text.strip().splitlines())
    allowed = {f"{module.removesuffix(':')}.{name}" for module, *names in lines for name in names}
    assert found - allowed == set(), "say why these are no figures of a device, or move them to the data files"
    assert allowed - found == set(), "these are gone"


USUAL = {0, 1, 2, 10, 100, 1000, 1e6, 1e9, 0.5, 1e-3, 1e-6}
"""Numbers of formulas and of units: 1 - x, a half, microseconds of a second."""
BITS = (ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor, ast.Pow)
SMALL = 8
"""Integers up to here count things: arguments, dimensions, neighbours."""


def literals(file: Path) -> Iterator[tuple[str, int | float]]:
    """Yields the numbers by which a module's functions compare, multiply, limit or choose, with the function's name."""

    def weighs(node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):
            return not isinstance(node.op, BITS)
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "clamp")
        return isinstance(node, (ast.Compare, ast.IfExp, ast.AugAssign, ast.Assign, ast.Return, ast.Tuple))

    def inside(node: ast.AST, owner: str) -> Iterator[tuple[str, int | float]]:
        for child in ast.iter_child_nodes(node):
            own = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else owner
            if own and isinstance(child, ast.Constant) and weighs(node):
                value = child.value
                if type(value) in (int, float) and value not in USUAL and (type(value) is float or abs(value) > SMALL):
                    yield own, value
            yield from inside(child, own)

    return inside(ast.parse(file.read_text()), "")


def test_numbers_inside_functions_are_no_measurements(tmp_path: Path) -> None:
    """One that is no figure of a device has a line in `numeric_constants.py`, under why it is none."""
    allowed = {
        (module.removesuffix(":"), *own.split("=", 1))
        for text in LITERALS.values()
        for module, *functions in (line.split() for line in text.strip().splitlines())
        for own in functions
    }
    allowed = {(module, name, number) for module, name, numbers in allowed for number in numbers.split(",")}
    found = {(file.stem, name, str(value)) for file in MODULES for name, value in literals(file)}
    whole = {module for text in WHOLE_MODULES.values() for module in text.split()}
    found = {each for each in found if each[0] not in whole}
    assert found - allowed == set(), "say why these are no figures of a device, or move them to the data files"
    assert allowed - found == set(), "these are gone"
    module = tmp_path / "measured.py"
    module.write_text(
        "def fits(n):\n    return n < 4096 and 0.7 * n and min(n, 64) and [16, 1 << 20, n + 8, 2.0 * n]\n"
    )
    assert list(literals(module)) == [("fits", 4096), ("fits", 0.7), ("fits", 64)]


DEVICE = re.compile(r"\b(H100|H200|sm_90|Hopper)\b")
CAPABILITY = re.compile(r"capability\b[^\n]*\b90\b|\b90\b[^\n]*capability\b")


def code_of(file: Path) -> str:
    """A file's text without its comments and docstrings."""
    text = file.read_text()
    skipped = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.start[0] not in skipped:
            lines.setdefault(token.start[0], []).append(token.string)
    return "\n".join(" ".join(parts) for parts in lines.values())


def test_no_code_names_a_gpu() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in MODULES
        if DEVICE.search(text := file.read_text()) or CAPABILITY.search(text)  # of most files that is all that is asked
        for line in code_of(file).splitlines()
        if DEVICE.search(line) or CAPABILITY.search(line)
    }
    assert found == set()


# ---------------------------------------------------------------------------------------------------- the data files


def rooms() -> Mapping[str, type[Room]]:
    """The records of all rooms, by their tables."""
    found: dict[str, type[Room]] = {}
    for file in MODULES:
        if "(Room)" not in file.read_text():
            continue
        parts = file.with_suffix("").parts
        above = max(at for at, part in enumerate(parts) if part in ("src", "site-packages"))  # here, or installed
        module = importlib.import_module(".".join(parts[above + 1 :]))
        for room in vars(module).values():
            if (
                isinstance(room, type)
                and issubclass(room, Room)
                and room is not Room
                and room.__module__ == module.__name__
            ):
                assert room.table not in found, f"two rooms have the table {room.table}"
                found[room.table] = room
    return found


ROOMS = rooms()


def entries(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, entry) of a file's figures."""
    for table, rows in tomllib.loads(file.read_text()).items():
        if isinstance(rows, dict) and table not in (*data.SHEETS, "capability", "sources"):
            yield from ((f"{table}.{name}", entry) for name, entry in rows.items())


def said(entry: Mapping[str, Any]) -> bool:
    """Does an entry say where, when and how it was found?"""
    texts = all(isinstance(entry.get(key), str) and entry[key].strip() for key in ("source", "date", "command"))
    return texts and bool(re.fullmatch(r"20\d\d(-\d\d-\d\d)?|unknown: .*", entry["date"]))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_says_where_its_figures_are_from(file: Path) -> None:
    tables = tomllib.loads(file.read_text())
    for name, entry in entries(file):
        table, _, field = name.partition(".")
        assert table in ROOMS and field in {each.name for each in dataclasses.fields(ROOMS[table])}, name
        assert set(entry) == SAID and said(entry), name
        assert UNITS.search(f"_{field}"), f"{name} does not say what it counts"
    sheets = [tables[key] for key in ("datasheet", "measured", "sources") if key in tables]
    assert all(map(said, sheets))
    assert "like" not in tables or (FOLDERS[0] / f"{tables['like']}.toml").exists()
    if file.parent in FOLDERS[1:]:  # a plugin's, of one device
        assert not sheets and file.stem in data.device_names()
    else:
        assert (
            sheets
            or file.stem.startswith("cpu-")
            or ({name.partition(".")[0] for name, _ in entries(file)} == {file.stem} and file.parent != FOLDERS[0])
        )


def test_figures_lie_with_the_rooms_that_go_by_them() -> None:
    """Core's files have none of a plugin's rooms, and the other way round."""
    for file in FILES:
        package = file.relative_to(ROOT).parts[2]
        assert {data.package_of(ROOMS[name.partition(".")[0]]) for name, _ in entries(file)} <= {package}, file


LOST = 85
"""Entries whose command nobody knows any more: "lost". Lower the number when you measure one anew; never raise it."""


def commands() -> Iterator[tuple[str, str]]:
    """(name, command) of every entry and table that says a command."""
    for file in FILES:
        tables = tomllib.loads(file.read_text())
        sheets = [(key, tables[key]) for key in ("datasheet", "measured", "sources") if key in tables]
        yield from ((name, entry["command"]) for name, entry in (*entries(file), *sheets))


def test_commands_that_are_lost_become_fewer() -> None:
    found = [command for _, command in commands()]
    assert found.count("lost") <= LOST, "say how a figure was measured"
    assert found.count("lost") == LOST, "LOST can be lowered"
    assert not [command for command in found if "unknown" in command]


def test_commands_of_figures_can_be_run() -> None:
    """A command names a benchmark that is there, with cases that are there, or a trial of `litz calibrate`."""
    cases = "".join((ROOT / "benchmarks" / f"{name}.py").read_text() for name in ("gpu_kernels", "model_kernels"))
    for name, command in commands():
        if command.startswith("litz calibrate "):
            figures = {trial.figure for trial in TRIALS[command.rsplit(" ", 1)[1]]}
            assert name in figures | {"launch.launch_us", "roofline.launch_share", "measured"}, name
        elif command.startswith("python -m benchmarks."):
            words = shlex.split(command)
            assert (ROOT / f"{words[2].replace('.', '/')}.py").exists(), f"{name}: {command}"
            if words[2] in ("benchmarks.gpu_kernels", "benchmarks.gpu_tilings") and "--only" in words:
                parts = words[words.index("--only") + 1 :]
                assert all(part.split(" ")[0] in cases for part in parts), f"{name}: {command}"
        else:
            assert command == "lost" or command.startswith("none: "), f"{name}: {command}"


@pytest.mark.parametrize("table", sorted(ROOMS))
def test_a_room_has_all_its_figures(table: str) -> None:
    """Of each kind of device that it is for, with the types that it says."""
    room, made = ROOMS[table], []
    for target in (target_named("A100"), target_named("H200"), Target("cpu"), Target("cuda", capability=80)):
        kind = "gpu" if "blocks" in target.abilities else "cpu"
        shared = [file for file in FILES if file.stem == table and file.parent.name in ("any", kind)]
        if shared or not required(room):
            made.append(figures_of(target, room))
    assert made
    for each in made:
        for name, kind in get_type_hints(room).items():
            assert name == "table" or fits(getattr(each, name), kind), f"{table}.{name} is no {kind}"


def fits(value: Any, kind: Any) -> bool:
    """Is a value what a field's annotation says?"""
    parts = get_args(kind)
    if get_origin(kind) is UnionType:
        return any(fits(value, part) for part in parts)
    if get_origin(kind) is not tuple:
        return type(value) in ((int, float) if kind is float else (kind,))
    if type(value) is not tuple or parts[-1] is Ellipsis:
        return type(value) is tuple and all(fits(each, parts[0]) for each in value)
    return len(value) == len(parts) and all(map(fits, value, parts))


def required(room: type[Room]) -> list[str]:
    return [field.name for field in dataclasses.fields(room) if field.default is dataclasses.MISSING]


def test_datasheets_are_complete() -> None:
    for spec in all_specs():
        assert spec.capability in families() and {"fp64", "fp32", "fp16", "bf16"} <= set(spec.vector), spec.file
    assert len(all_specs()) == len({spec.name for spec in all_specs()})


# ---------------------------------------------------------------------------------------------- who has which figures


def test_a_gpu_that_nobody_measured_has_no_tables_of_its_own() -> None:
    """Another GPU of capability 9.0 is no H100."""
    own = {figures_of(target_named(name), RowsFigures).as_stored for name in ("H200", "GH200", "H100")}
    assert len(own) == 1 and None not in own
    unknown, nameless = cuda_target("NVIDIA H20", {"capability": 90.0}), cuda_target("", {"capability": 90.0})
    for target in (unknown, nameless, target_named("A100"), target_named("B200")):
        assert figures_of(target, RowsFigures).as_stored is None and target.figures == Figures()


def test_abilities_follow_the_capability() -> None:
    pascal, ampere, hopper = (target_named(name).abilities for name in ("P100", "A100", "H100"))
    assert hopper - ampere == {"tma"} and ampere - pascal == {"attention", "float8"}


def test_a_target_of_ones_own_sets_a_figure() -> None:
    usual = target_of("cuda")
    mine = replace(usual, figures=usual.figures | {"estimate.again_share": 0.5})
    assert figures_of(mine, EstimateFigures) == replace(figures_of(usual, EstimateFigures), again_share=0.5)
    again = pickle.loads(pickle.dumps(mine))
    assert again == mine and hash(again.figures) == hash(mine.figures)
    with pytest.raises(TypeError):
        Figures({"estimate.again_share": [0.5]})


def test_a_calibration_file_sets_a_figure(tmp_path: Path) -> None:
    path = tmp_path / "calibration.toml"
    begin = 'type = "cuda"\n'
    path.write_text(f"{begin}[estimate.again_share]\nvalue = 0.5\n[rows.as_stored]\nvalue = [1, 1, 1, 1.0]\n")
    target = target_of("cuda", {"calibration": path})
    assert figures_of(target, EstimateFigures).again_share == 0.5
    assert target.figures["rows.as_stored"] == (1, 1, 1, 1.0)
    assert figure_of(target, "estimate.again_share") == 0.5 and figure_of(Target("cpu"), "rows.as_stored") is None
    for wrong, why in (("agian]\nvalue = 1", "no data file"), ('again_share]\nvalue = "much"', "should be like")):
        path.write_text(f"{begin}[estimate.{wrong}\n")
        os.utime(path, ns=(len(wrong), len(wrong)))
        with pytest.raises(CalibrationError, match=why):
            target_of("cuda", {"calibration": path})


def test_a_figure_that_is_missing_is_named() -> None:
    @dataclasses.dataclass(frozen=True)
    class Needs(Room):
        table = "nobody"
        least_rows: int

    with pytest.raises(FiguresError, match="least_rows"):
        figures_of(Target("cpu"), Needs)
    assert figures_of(Target("cpu", figures=Figures({"nobody.least_rows": 3})), Needs).least_rows == 3


def test_a_plugin_s_figures_lie_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that all devices of a kind share, and a device's own; a calibration file may set each."""
    figures = tmp_path / "its_package" / "figures"
    (figures / "gpu").mkdir(parents=True)
    (tmp_path / "its_package" / "__init__.py").write_text(
        "from dataclasses import dataclass\n"
        "from litz.target import Room\n"
        "@dataclass(frozen=True)\n"
        "class ItsFigures(Room):\n"
        "    table = 'its'\n"
        "    least_rows: int\n"
    )
    (figures / "gpu" / "its.toml").write_text("[its.least_rows]\nvalue = 3\n")
    (figures / "h100.toml").write_text("[its.least_rows]\nvalue = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    room = importlib.import_module("its_package").ItsFigures
    assert [figures_of(target_named(name), room).least_rows for name in ("A100", "H100", "H200")] == [3, 5, 5]
    with pytest.raises(FiguresError, match=r"its_package.figures"):
        figures_of(Target("cpu"), room)

    point = EntryPoint("its", "its_package", "litz")
    monkeypatch.setattr(data, "entry_points", lambda group: [point])
    assert data.known_figures()["its.least_rows"] in (3, 5)
