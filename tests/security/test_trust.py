"""Files of strangers, and folders in which strangers may write: nothing of them is loaded, and one warning says why."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import litz_aot
from litz.cache import manifest
from litz.cache.disk import Cache, digest, folder_for_texts, temporary_folder
from litz.errors import CacheError, InvalidOptionError
from litz.options import make_options
from litz.origins.trust import OWN, Trust, make_trust, warn_once
from litz_aot.errors import PackageError
from litz_aot.package import load_package
from support.warm import run_warm

STRANGER = 54321
KEY = digest("key")


@pytest.fixture(autouse=True)
def each_warns() -> None:
    warn_once.cache_clear()


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.lchown(path, STRANGER, STRANGER)


def make(text: str = "mine") -> object:
    return lambda folder: (folder / "text").write_text(text, encoding="utf-8")


def read(folder: Path) -> str:
    return (folder / "text").read_text(encoding="utf-8")


@contextlib.contextmanager
def warned(*words: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    (found,) = [str(each.message) for each in caught]
    assert all(word in found for word in words), found


# ---------------------------------------------------------------------------------------------------------- one place


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_folders_of_ones_own(tmp_path: Path, mode: int) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(mode)
    assert not OWN.problem_of(tmp_path / "own") and not OWN.problem_of(tmp_path / "own" / "not" / "there")


@pytest.mark.parametrize("mode, who", [(0o777, "everybody"), (0o757, "everybody"), (0o1777, "everybody")])
def test_a_folder_that_others_may_write(tmp_path: Path, mode: int, who: str) -> None:
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose").chmod(mode)
    for place in (tmp_path / "loose", tmp_path / "loose" / "not_there") if mode != 0o1777 else (tmp_path / "loose",):
        problem = OWN.problem_of(place)
        assert f"{who} may write to {tmp_path}/loose" in problem and "chmod -R go-w" in problem
    (tmp_path / "loose" / "inner").mkdir()
    safe_below = mode == 0o1777
    assert bool(OWN.problem_of(tmp_path / "loose" / "inner")) is not safe_below, "the sticky bit keeps a name"
    assert bool(OWN.problem_of(tmp_path / "loose", sticky=True)) is not safe_below


def test_a_folder_that_a_group_may_write(tmp_path: Path) -> None:
    """Of another group than the user's own; umask 002 with a group for each user is safe."""
    import grp
    import pwd

    folder = tmp_path / "team"
    folder.mkdir()
    folder.chmod(0o775)
    me = pwd.getpwuid(os.geteuid()).pw_name
    own = grp.getgrgid(folder.stat().st_gid)
    members = {user.pw_name for user in pwd.getpwall() if user.pw_gid == own.gr_gid} | {*own.gr_mem}
    if own.gr_gid and own.gr_name == me and members <= {me}:
        assert not OWN.problem_of(folder)
    if os.geteuid() == 0:
        os.chown(folder, -1, 0)
        assert "the group root may write" in OWN.problem_of(folder), "containers start users of any number in group 0"
        os.chown(folder, -1, STRANGER)
        assert f"the group {STRANGER} may write" in OWN.problem_of(folder)
        assert not Trust(groups=frozenset({STRANGER})).problem_of(folder)


def test_a_folder_of_a_stranger(tmp_path: Path) -> None:
    """Root's, too: what a user may write is not root's to run."""
    (tmp_path / "theirs" / "inner").mkdir(parents=True)
    give_away(tmp_path / "theirs")
    for place in (tmp_path / "theirs", tmp_path / "theirs" / "inner"):
        problem = OWN.problem_of(place)
        assert f"theirs belongs to {STRANGER}" in problem and f"LITZ_TRUST={STRANGER}" in problem
        assert not make_trust([str(STRANGER)]).problem_of(place) and not make_trust([f"%{STRANGER}"]).problem_of(place)


def test_a_link_of_a_stranger(tmp_path: Path) -> None:
    """Its owner can let it lead elsewhere at any time."""
    (tmp_path / "own").mkdir()
    link = tmp_path / "link"
    link.symlink_to("own")
    assert not OWN.problem_of(link)
    (tmp_path / "own").chmod(0o777)
    assert "own (mode 777)" in OWN.problem_of(link), "where it leads counts"
    (tmp_path / "own").chmod(0o755)
    give_away(link)
    assert f"link belongs to {STRANGER}" in OWN.problem_of(link)


def test_links_that_lead_in_circles_or_up(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "leads nowhere" in OWN.problem_of(tmp_path / "a")
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    (loose / "x").mkdir()
    (tmp_path / "up").symlink_to("loose/x/..")
    assert "loose" in OWN.problem_of(tmp_path / "up")


def test_what_is_looked_at_is_what_was_opened(tmp_path: Path) -> None:
    """By its descriptor; links, pipes and devices are not opened, and nobody waits."""
    (tmp_path / "file").write_text("content", encoding="utf-8")
    with OWN.opened(tmp_path / "file") as file:
        assert file.read() == b"content"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loose").touch()
    (tmp_path / "loose").chmod(0o666)
    for name in ("pipe", "link", "zero", "loose", ".", "not there"):
        with pytest.raises(OSError):
            OWN.opened(tmp_path / name)
    with pytest.raises(OSError):
        OWN.opened(Path("/dev/zero"))
    assert len(os.listdir("/proc/self/fd")) < 200


def test_a_container_in_which_root_appears_as_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home" / "own").mkdir(parents=True)
    give_away(tmp_path / "home")
    monkeypatch.setattr("litz.origins.trust._unmapped", lambda: STRANGER)
    assert not OWN.problem_of(tmp_path / "home" / "own")
    assert f"home belongs to {STRANGER}" in OWN.problem_of(tmp_path / "home")


def test_names_of_users_and_groups() -> None:
    import grp
    import pwd

    user, group = pwd.getpwuid(0).pw_name, grp.getgrgid(0).gr_name
    assert make_trust([user, "1000", f"%{group}", "%7"]) == Trust(frozenset({0, 1000}), frozenset({0, 7}))
    for name in ("no_such_user", "%no_such_group", "%", ""):
        with pytest.raises(ValueError, match=f"knows no '{name}'"):
            make_trust([name])
        with pytest.raises(InvalidOptionError, match="users of this machine by name or number, and groups as %NAME"):
            make_options(None, {"trust": [name]})


# -------------------------------------------------------------------------------------------------------- litz's cache


@pytest.mark.parametrize("loose", ["", "cpp"])
def test_a_cache_in_which_others_may_write(tmp_path: Path, loose: str) -> None:
    """An entry there is not read, and none is put there."""
    root = tmp_path / "cache"
    Cache(root).build("cpp", KEY, make("evil"), ("text",))
    (root / loose).chmod(0o777)
    cache = Cache(root)
    assert cache.find("cpp", KEY) is None
    with warned("goes on without its disk cache", f"{root} cannot be used", "everybody may write", "chmod -R go-w"):
        assert cache.use("cpp", KEY, make(), read, ("text",)) == "mine"
        assert Cache(root).use("cpp", digest("other"), make(), read, ("text",)) == "mine"
    assert len(list((root / "cpp").glob("*/text"))) == 1


def test_a_folder_that_a_stranger_made_first(tmp_path: Path) -> None:
    """In a place like /tmp, with an entry that is whole."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    tmp.chmod(0o1777)
    root = tmp / "litz"
    Cache(root).build("graph", KEY, make("evil"), ("text",))
    for path in (root, *root.rglob("*")):
        give_away(path)
    cache = Cache(root)
    assert cache.find("graph", KEY) is None
    with warned(f"belongs to {STRANGER}", f"LITZ_TRUST={STRANGER}"):
        assert cache.use("graph", KEY, make(), read, ("text",)) == "mine"
    trusting = Cache(root, trust=make_trust([str(STRANGER)]))
    assert trusting.use("graph", KEY, make(), read, ("text",)) == "evil"


def test_a_folder_that_a_stranger_makes_between_the_look_and_the_use(tmp_path: Path) -> None:
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    tmp.chmod(0o1777)
    cache = Cache(tmp / "litz")
    assert cache.find("graph", KEY) is None  # looked at: nothing there, and nothing against it
    Cache(tmp / "litz").build("graph", KEY, make("evil"), ("text",))
    (tmp / "litz").chmod(0o777)
    assert cache.find("graph", KEY) is None
    with warned("everybody may write"):
        assert cache.use("graph", KEY, make(), read, ("text",)) == "mine"


@pytest.mark.parametrize("what", ["entry", "inner", "text", "manifest.json"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_an_entry_that_others_may_write(tmp_path: Path, what: str, how: str) -> None:
    """It is built anew, in a folder of one's own."""

    def fill(folder: Path) -> None:
        make("mine")(folder)  # type: ignore[operator]
        (folder / "inner").mkdir()
        (folder / "inner" / "more").touch()

    folder = Cache(tmp_path).build("cpp", KEY, fill, ("text",))
    path = folder if what == "entry" else folder / what
    give_away(path) if how == "owner" else path.chmod(0o777)
    assert not manifest.holds(folder)
    cache = Cache(tmp_path)
    assert cache.find("cpp", KEY) is None
    assert read(cache.build("cpp", KEY, fill, ("text",))) == "mine"
    assert cache.misses == 1 and manifest.holds(folder) and path.stat().st_uid == os.geteuid()


def test_kinds_of_measurements_and_verdicts_too(tmp_path: Path) -> None:
    for kind in ("autotune", "autotune-partial", "autotune-decisions", "compiler", "native", "triton"):
        folder = Cache(tmp_path).build(kind, KEY, make("evil"), ("text",))
        (folder / "text").chmod(0o666)
        assert Cache(tmp_path).find(kind, KEY) is None


def test_shared_caches(tmp_path: Path) -> None:
    """A team's cache is used where the option `trust` names its owner."""
    team = tmp_path / "team"
    Cache(team).build("cpp", KEY, make("theirs"), ("text",))
    own = Cache(tmp_path / "own", shared=(team,))
    assert read(own.build("cpp", KEY, make(), ("text",))) == "theirs"
    for path in (team, *team.rglob("*")):
        give_away(path)
    with warned(f"uses nothing from {team}", "cache_shared", f"belongs to {STRANGER}", f"LITZ_TRUST={STRANGER}"):
        for _ in range(2):
            other = Cache(tmp_path / "own", shared=(team,))
            assert read(other.build("cpp", KEY, make(), ("text",))) == "mine"
    trusting = Cache(tmp_path / "third", shared=(team,), trust=Trust(frozenset({STRANGER})))
    assert read(trusting.build("cpp", KEY, make(), ("text",))) == "theirs"


def test_a_group_that_shares_one_cache(tmp_path: Path) -> None:
    """With `trust=%group` its members may write what others made; without, new folders are nobody else's to write."""
    old = os.umask(0)
    try:
        Cache(tmp_path / "own").build("cpp", KEY, make(), ("text",))
        Cache(tmp_path / "team", trust=Trust(groups=frozenset({os.getgid()}))).build("cpp", KEY, make(), ("text",))
    finally:
        os.umask(old)
    modes = {root: {path.stat().st_mode & 0o777 for path in (tmp_path / root).rglob("*")} for root in ("own", "team")}
    assert modes["own"] == {0o755, 0o644} and {0o775, 0o664} <= modes["team"] <= {0o775, 0o664, 0o644}


# ------------------------------------------------------------------------------------------------ folders to build in


def test_a_temporary_folder_that_others_may_rename_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(loose))
    with warned(f"builds in another place than {loose}", "everybody may write", "set TMPDIR"):
        folder = temporary_folder()
    assert loose not in folder.parents and stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.rmdir()
    monkeypatch.setattr("litz.cache.disk._PLACES", (str(loose),))
    warn_once.cache_clear()
    with warned("builds in another place"), pytest.raises(CacheError, match="everybody may write"):
        temporary_folder()
    loose.chmod(0o1777)
    assert temporary_folder().parent == loose


def test_texts_of_failures_follow_no_link(tmp_path: Path) -> None:
    """`failed/graph.py` that leads to ~/.bashrc."""
    root = tmp_path / "cache"
    assert folder_for_texts(root) == root / "failed"
    (root / "failed").chmod(0o777)
    other = folder_for_texts(root)
    assert root not in other.parents and stat.S_IMODE(other.stat().st_mode) == 0o700
    other.rmdir()


def test_tritons_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs", exc_type=ImportError)
    from litz.targets.triton.compile import keep_tritons_cache_own

    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path)
        keep_tritons_cache_own()
        assert knobs.cache.dir == str(tmp_path)
        tmp_path.chmod(0o777)
        with warned("Triton go on without its cache", "everybody may write", "TRITON_CACHE_DIR=/path"):
            keep_tritons_cache_own()
        assert knobs.cache.dir != str(tmp_path) and stat.S_IMODE(os.stat(knobs.cache.dir).st_mode) == 0o700
    tmp_path.chmod(0o700)


# ----------------------------------------------------------------------------------------------------- whole compiles


PROGRAM = """
import os, sys, warnings
import torch
def function(x):
    return torch.softmax(x * 2, -1).sum(0)
x = torch.rand(30, 40, requires_grad=True)
result = torch.compile(function, backend="litz")(x)
torch.testing.assert_close(result, function(x))
result.sum().backward()
print("right")
"""


def run(folder: Path, **variables: object) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "LITZ_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "traces"),
        "LITZ_CPP_QUALIFY": "0",
        "LITZ_GRAPH_CACHE": "1",
        **{name: str(value) for name, value in variables.items()},
    }
    done = run_warm(["-c", PROGRAM], environ, 60, imported=True)
    assert done.returncode == 0 and done.stdout.split() == ["right"], done.stderr[-3000:]
    assert (folder / "stolen").exists() is ("LITZ_TRUST" in variables)
    return done


class Evil:
    """What steals when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("how", ["mode", "owner", "file"])
def test_torchs_cache_of_traces_is_not_unpickled(tmp_path: Path, how: str) -> None:
    traces = tmp_path / "traces"
    assert "Warning: litz" not in run(tmp_path).stderr
    entries = [path for path in traces.rglob("*") if path.is_file() and "aotautograd" in path.parts]
    assert entries
    for path in entries:
        path.write_bytes(pickle.dumps(Evil(tmp_path / "stolen")))
    if how == "mode":
        traces.chmod(0o777)
    elif how == "owner":
        for path in (traces, *traces.rglob("*")):
            give_away(path)
    else:
        for path in entries:
            path.chmod(0o666)
    done = run(tmp_path)
    found = [line for line in done.stderr.splitlines() if "Warning: litz" in line]
    assert len(found) == 1 and "is not used" in found[0] and "TORCHINDUCTOR_CACHE_DIR=/path" in found[0], done.stderr
    if how == "owner":  # whom the user names, he trusts with everything
        run(tmp_path, LITZ_TRUST=STRANGER)


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o700), (0o022, 0o755)])
def test_traces_that_torch_wrote_under_any_mask_are_found(tmp_path: Path, mask: int, mode: int) -> None:
    """torch's files have the mode that the mask lets, so nobody else may enter their folder where that is 666."""
    (tmp_path / "traces").mkdir(0o755)
    program = f"import os; os.umask({mask})\n" + PROGRAM + "from torch._dynamo.utils import counters\n"
    program += 'print(counters["aot_autograd"]["autograd_cache_hit"])\n'
    environ = {
        **os.environ,
        "LITZ_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "traces"),
        "LITZ_CPP_QUALIFY": "0",
        "LITZ_GRAPH_CACHE": "1",
    }
    for hits in "01":
        done = run_warm(["-c", program], environ, 60, imported=True)
        assert done.stdout.split() == ["right", hits] and "Warning: litz" not in done.stderr, done.stderr
    entries = [path for path in (tmp_path / "traces").rglob("*") if path.is_file() and "aotautograd" in path.parts]
    assert entries and {stat.S_IMODE(path.parent.stat().st_mode) for path in entries} == {mode}
    for path in entries:  # whoever may enter the folder may write such a file
        path.parent.chmod(0o711)
        path.chmod(0o666)
    done = run_warm(["-c", program], environ, 60, imported=True)
    assert done.stdout.split() == ["right", "0"] and "is not used" in done.stderr


def test_a_whole_cache_of_evil_libraries(tmp_path: Path) -> None:
    """Every library and wrapper of a cache that others may write is replaced, with sums that agree."""
    run(tmp_path)
    source = tmp_path / "evil.c"
    made = f'mkdir("{tmp_path}/stolen", 0755);'
    text = f"#include <sys/stat.h>\n__attribute__((constructor)) static void f(void) {{ {made} }}\n"
    source.write_text(text, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "evil.so"), str(source)], check=True)
    evil = (tmp_path / "evil.so").read_bytes()
    replaced = 0
    for path in (tmp_path / "cache").rglob("*"):
        if path.suffix in (".so", ".py") and path.is_file():
            path.write_bytes(
                evil if path.suffix == ".so" else f"import os; os.mkdir({str(tmp_path / 'stolen')!r})".encode()
            )
            replaced += 1
    for folder in {path.parent for path in (tmp_path / "cache").rglob(manifest.FILE)}:
        (folder / manifest.FILE).unlink()
        manifest.write(folder)
    assert replaced >= 2
    (tmp_path / "cache").chmod(0o777)
    done = run(tmp_path, TORCHINDUCTOR_CACHE_DIR=tmp_path / "others")
    found = [line for line in done.stderr.splitlines() if "Warning: litz" in line]
    assert len(found) == 1 and "everybody may write" in found[0] and "chmod -R go-w" in found[0], done.stderr


def test_no_mask_makes_a_cache_that_others_may_write(tmp_path: Path) -> None:
    """Under umask 000 a second process finds what the first has kept."""
    program = "import os; os.umask(0)\n" + PROGRAM
    environ = {
        **os.environ,
        "LITZ_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "traces"),
        "LITZ_CPP_QUALIFY": "0",
    }
    done = run_warm(["-c", program], environ, 60, imported=True)
    assert done.stdout.split() == ["right"], done.stderr
    paths = list((tmp_path / "cache").rglob("*"))
    assert paths and not [path for path in paths if path.lstat().st_mode & 0o022]
    assert not OWN.problem_of(tmp_path / "cache")


# ----------------------------------------------------------------------------------------------------------- packages


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package, of which a test takes a copy."""
    import torch

    folder = tmp_path_factory.mktemp("made") / "package"
    litz_aot.compile(lambda x: torch.softmax(x, -1) * 2, (torch.ones(8, 8),), folder)
    return folder


@pytest.mark.parametrize("what", ["", "kernels", "package.json", "wrapper.py"])
@pytest.mark.parametrize("how", ["mode", "owner"])
def test_a_package_that_others_may_change(package: Path, tmp_path: Path, what: str, how: str) -> None:
    folder = Path(shutil.copytree(package, tmp_path / "package"))
    load_package(folder)
    wrapper = folder / "wrapper.py"
    wrapper.write_text(f"import os; os.mkdir({str(tmp_path / 'stolen')!r})", encoding="utf-8")
    data = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    data["sums"]["wrapper.py"] = manifest.sum_of(wrapper)
    (folder / "package.json").write_text(json.dumps(data), encoding="utf-8")
    give_away(folder / what) if how == "owner" else (folder / what).chmod(0o777)
    with pytest.raises(PackageError) as caught:
        load_package(folder)
    said = str(caught.value) + str(caught.value.__cause__)
    assert not (tmp_path / "stolen").exists() and (
        "others may" in said or f"belongs to {STRANGER}" in said or "go-w" in said
    )


def test_the_reason_of_an_error_is_permission(tmp_path: Path) -> None:
    (tmp_path / "loose").touch()
    (tmp_path / "loose").chmod(0o666)
    with pytest.raises(PermissionError) as caught:
        OWN.opened(tmp_path / "loose")
    assert caught.value.errno == errno.EPERM and "chmod -R go-w" in str(caught.value)
