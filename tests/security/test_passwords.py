"""A password in the address of a Redis server: nothing that litz writes or prints has it."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest

from litz.errors import InvalidOptionError
from litz.options import make_options
from litz_autotune.remote import RemoteStore
from litz_autotune.results import Counters
from litz_plugins import OptionSpec, Secret
from support.warm import run_warm

PASSWORD, USER = "hunter2/of:mine", "someone"
ADDRESS = "redis://someone:hunter2%2Fof:mine@127.0.0.1:1/0"
PARTS = ("hunter2", "of:mine", "someone")


@pytest.mark.parametrize(
    "text, shown",
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:word@host:6379/0", "redis://***@host:6379/0"),
        ("rediss://user:word@[::1]:6379", "rediss://***@[::1]:6379"),
        ("redis://token@host", "redis://***@host"),
        ("redis://host/0?password=word&db=1", "redis://host/0?***"),
        ("unix://:word@/run/redis.sock?db=1", "unix://***@/run/redis.sock?***"),
        ("redis://:wo/rd@host", "***"),
        ("redis://:wo?rd@host", "***"),
        ("redis://:wo#rd@host", "***"),
        ("redis://:wo@rd@host", "***"),
        ("redis://user:12?word@host", "***"),
        ("redis://host/0?password=a@word", "***"),
        ("word", "***"),
        ("", "***"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    secret = Secret(text)
    assert secret.reveal() == text and shown == str(secret)
    ways = (f"{secret}", f"{secret!s:s}", secret + "", "".join([secret]), json.loads(json.dumps(secret)))
    assert set(ways) == {shown} and repr(secret) == repr(shown)
    assert Secret(str(secret)) == shown, "what is shown is shown as it is"


def test_copies_keep_the_password_and_pickles_do_not() -> None:
    secret = Secret(ADDRESS)
    assert copy.deepcopy([secret])[0].reveal() == copy.copy(secret).reveal() == ADDRESS
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps({"options": secret}, protocol)
        assert not any(part.encode() in data for part in PARTS)
        assert pickle.loads(data)["options"] == "redis://***@127.0.0.1:1/0"
    assert secret == Secret(ADDRESS) != Secret(ADDRESS.replace("mine", "yours"))
    assert len({secret, Secret(ADDRESS), Secret(ADDRESS.replace("mine", "yours"))}) == 2


def test_a_value_of_a_wrong_type_is_not_shown() -> None:
    specs = [OptionSpec("p.server", Secret, None, "a server")]
    for value in (ADDRESS.encode(), [ADDRESS], {"url": ADDRESS}):
        with pytest.raises(InvalidOptionError) as caught:
            make_options(user_options={"p.server": value}, plugin_specs=specs, environ={})
        assert not any(part in str(caught.value) + repr(vars(caught.value)) for part in PARTS)
    assert make_options(environ={"LITZ_P_SERVER": ADDRESS}, plugin_specs=specs)["p.server"].reveal() == ADDRESS


def test_the_reason_why_an_address_cannot_be_read_does_not_quote_it() -> None:
    """Python's own: Port could not be cast to integer value as 'hunter2'."""
    pytest.importorskip("redis")
    store = RemoteStore("redis://:hunter2/of:mine@host/0", Counters())
    with pytest.warns(UserWarning, match="no URL that the redis package can read") as caught:
        assert store._in_time(lambda: store._connect().get("key")) is None
    assert not any(part in str(caught[0].message) for part in PARTS)


def test_a_server_that_cannot_be_reached() -> None:
    pytest.importorskip("redis")
    store = RemoteStore(ADDRESS, Counters())
    with pytest.warns(
        UserWarning, match=r"autotune.remote_cache=redis://\*\*\*@127.0.0.1:1/0: ConnectionError"
    ) as caught:
        assert store._in_time(lambda: store._connect().get("key")) is None
    assert not any(part in str(caught[0].message) + repr(vars(store)["url"]) for part in PARTS)


PROGRAM = """
import torch, torch._dynamo, litz.report

def compiled(x):
    return torch.softmax(x @ x, -1).sum(0)

settings = {"max_autotune": True, "autotune.in_subprocess": False, "report_dir": REPORTS, "benchmark_kernels": True}
with litz.report.collect() as reports:
    print(torch.compile(compiled, backend="litz", options=settings)(torch.rand(32, 32)).sum())
    print(vars(reports[0]), reports)

from litz.driver import stages
def fails(*args, **kwargs):
    raise ValueError("made to fail")
stages.lower = fails
torch._dynamo.reset()
try:
    torch.compile(lambda x: torch.cumsum(x @ x, 0) * 3, backend="litz", options=settings)(torch.rand(16, 16))
except Exception as error:
    print(error, repr(error), vars(error))
"""


def test_no_file_and_no_stream_has_the_password(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "LITZ_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "traces"),
        "TMPDIR": str(tmp_path / "tmp"),
        "LITZ_CPP_QUALIFY": "0",
        "LITZ_GRAPH_CACHE": "1",
        "LITZ_AUTOTUNE_REMOTE_CACHE": ADDRESS,
        "COLUMNS": "500",
    }
    (tmp_path / "tmp").mkdir()
    said = ""
    program = PROGRAM.replace("REPORTS", repr(str(tmp_path / "reports")))
    done = run_warm(["-c", program], environ, 60, imported=True)
    assert done.returncode == 0, done.stderr[-3000:]
    said += done.stdout + done.stderr
    assert "made to fail" in said and "redis://***@127.0.0.1:1/0" in said
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.compile(lambda x: x + 1, backend='litz')(torch.rand(3))\n", encoding="utf-8")
    for command in (
        ["doctor", "--json"],
        ["options"],
        ["options", "--json"],
        ["explain", str(script)],
        ["explain-miss", str(script)],
    ):
        done = run_warm(["-m", "litz", *command], environ, 60, imported=True)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "options" not in command or "redis://***@127.0.0.1:1/0" in done.stdout
        said += done.stdout + done.stderr
    assert_unsaid(said.encode(), "a stream")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    kinds = {path.name for path in files}
    assert {"key.json", "script.py"} <= kinds and any(path.parent.name == "failed" for path in files)
    assert list((tmp_path / "reports").rglob("*.html"))
    for path in files:
        assert_unsaid(path.read_bytes(), str(path))


def assert_unsaid(data: bytes, where: str) -> None:
    sums = [hash_(text.encode()).hexdigest() for text in (ADDRESS, PASSWORD) for hash_ in (hashlib.sha256, hashlib.md5)]
    for part in (*PARTS, *(each[:32] for each in sums)):
        assert part.encode() not in data, f"{where} has {part}"
