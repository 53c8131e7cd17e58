"""examples/serve over HTTP: many clients, clients that go, bad bodies, bounds; a server that starts from an artifact
in a process of its own, and ends by SIGTERM."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from support.no_gpu import gpu_hidden

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("aiohttp.web")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
with gpu_hidden():
    from examples.serve import load, pieces
    from examples.serve.api import Answer as Body
    from examples.serve.engine import Engine, Request, dispatch
    from examples.serve.server import Server

    from support.small_server import engine_of, greedy, prompts, running, setup_of, weights_of

Client = Any
PATH = "/v1/completions"


def served(engine: Engine, use: Callable[[Client], Awaitable[Any]], works: bool = True) -> Any:
    """What `use` returns of a client of an engine, which works only later if it does not yet."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        engine.deliver = lambda events: loop.call_soon_threadsafe(dispatch, events)
        runner = Server(engine).runner()
        await runner.setup()
        await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            limits = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(f"http://{host}:{port}", connector=limits) as client:
                with running(engine) if works else nullcontext():
                    return await use(client)
        finally:
            await runner.cleanup()

    return asyncio.run(run())


async def streamed(answer: Any) -> tuple[list[int], str, str]:
    """The tokens of a stream, its text, and how it ended."""
    tokens, text, reason = list[int](), "", ""
    lines = [line.decode().strip().removeprefix("data: ") async for line in answer.content if line.strip()]
    assert lines.pop() == "[DONE]"
    for line in lines:
        (choice,) = json.loads(line)["choices"]
        tokens, text, reason = tokens + choice["token_ids"], text + choice["text"], choice["finish_reason"]
    return tokens, text, reason


def test_of_200_requests_at_once_none_is_lost() -> None:
    setup = setup_of()
    expected = [(prompt, greedy(setup, prompt, 4)) for prompt in prompts(10)]

    async def use(client: Client) -> list[Any]:
        async def one(number: int) -> Any:
            body = {"prompt": expected[number % 10][0], "max_tokens": 4, "stream": number % 2 == 0}
            async with client.post(PATH, json=body) as answer:
                assert answer.status == 200
                if body["stream"]:
                    return (await streamed(answer))[0]
                return (await answer.json())["choices"][0]["token_ids"]

        found = await asyncio.gather(*(one(number) for number in range(200)))
        metrics = (await (await client.get("/metrics")).text()).splitlines()
        assert 'serve_requests_total{end="length"} 200' in metrics and "serve_tokens_total 800" in metrics
        assert "serve_first_token_seconds_count 200" in metrics and "serve_queue 0" in metrics
        return found

    found = served(engine_of(setup), use)
    assert found == [expected[number % 10][1] for number in range(200)]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_its_slot(stream: bool) -> None:
    setup = setup_of(batches=(1,), context=8192, windows=(64, 8192))
    engine = engine_of(setup)

    async def use(client: Client) -> None:
        first = asyncio.create_task(client.post(PATH, json={"prompt": [1], "max_tokens": 8000, "stream": stream}))
        while engine.metrics.tokens < 3:
            await asyncio.sleep(0.002)
        if stream:
            (await first).close()
        else:
            first.cancel()
        answer = await (await client.post(PATH, json={"prompt": [5], "max_tokens": 3})).json()
        assert answer["choices"][0]["token_ids"] == greedy(setup, [5], 3)

    served(engine, use)
    assert engine.metrics.ended == {"cancelled": 1, "length": 1} and engine.metrics.tokens < 8000


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "send an object with a prompt"),
    "deep JSON": ("[" * 100_000, "send an object with a prompt"),
    "no object": ("[]", "send an object with a prompt"),
    "no prompt": ({}, "send text, or a list of token ids"),
    "an empty prompt": ({"prompt": ""}, "send text, or a list of token ids"),
    "a list of texts": ({"prompt": ["a"]}, "ids are whole numbers from 0 to 271"),
    "a token that is none": ({"prompt": [272]}, "ids are whole numbers from 0 to 271"),
    "a truth for a token": ({"prompt": [True]}, "ids are whole numbers from 0 to 271"),
    "too long": ({"prompt": [1] * 190, "max_tokens": 3}, "the context of 192; shorten the prompt or lower max_tokens"),
    "no new tokens": ({"prompt": "a", "max_tokens": 0}, "a whole number, 1 or more"),
    "a cold temperature": ({"prompt": "a", "temperature": -1}, "a number from 0 to 100"),
    "no number": ({"prompt": "a", "temperature": float("nan")}, "a number from 0 to 100"),
    "top_p": ({"prompt": "a", "top_p": 0}, "a number above 0, 1 at most"),
    "a seed of text": ({"prompt": "a", "seed": "b"}, "a whole number"),
    "stop of text": ({"prompt": "a", "stop_token_ids": "b"}, "a list of token ids"),
    "stream of text": ({"prompt": "a", "stream": "yes"}, "true or false"),
    "an unknown field": (
        {"prompt": "a", "stop": "b"},
        "unknown fields: stop; leave them out, this server knows prompt",
    ),
}


def test_bad_bodies_are_told_what_to_do() -> None:
    async def use(client: Client) -> dict[str, tuple[int, str]]:
        found = {}
        for name, (body, _) in BAD.items():
            async with client.post(PATH, data=body if isinstance(body, str) else json.dumps(body)) as answer:
                found[name] = (answer.status, (await answer.json())["error"]["message"])
        return found

    found = served(engine_of(setup_of()), use, works=False)
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(BAD, 400)
    assert [name for name, (_, said) in BAD.items() if said not in found[name][1]] == []


def test_a_full_queue_is_a_429_and_a_draining_server_a_503() -> None:
    engine = engine_of(setup_of(), queue=1)

    async def use(client: Client) -> None:
        body = {"prompt": "a", "max_tokens": 2}
        waits = asyncio.create_task(client.post(PATH, json=body))
        while engine.load() != (1, 0):
            await asyncio.sleep(0.002)
        full = await client.post(PATH, json=body)
        assert full.status == 429 and full.headers["Retry-After"] == "1"
        assert (await client.get("/health")).status == 200
        engine.close()
        draining = await client.post(PATH, json=body)
        assert draining.status == 503 and "draining" in (await draining.json())["error"]["message"]
        assert (await client.get("/health")).status == 503
        with running(engine):
            assert (await waits).status == 200

    served(engine, use, works=False)


def test_who_waits_too_long_gets_a_503() -> None:
    async def use(client: Client) -> None:
        for stream in (False, True):
            answer = await client.post(PATH, json={"prompt": "a", "stream": stream})
            assert answer.status == 503 and "late" in (await answer.json())["error"]["message"]

    served(engine_of(setup_of(), patience=0.0), use)


def test_text_is_streamed_by_whole_characters() -> None:
    request = Request((1,), 9, lambda token, reason: None)
    request.made = [*"aä€".encode(), 300, 0xC3]
    body = Body(1, request, setup_of())
    events = [*((token, None) for token in request.made), (None, "length")]
    texts = [body.chunk(token, reason)["choices"][0]["text"] for token, reason in events]
    assert texts == ["a", "", "ä", "", "", "€", "", "", "\N{REPLACEMENT CHARACTER}"]
    whole = body.whole("length")
    assert whole["choices"][0]["text"] == "".join(texts)
    assert whole["usage"] == {"prompt_tokens": 1, "completion_tokens": 8, "total_tokens": 9}


SERVER = """
import sys
from examples.serve.server import main
main(sys.argv[1:])
print([name for name in ("torch._dynamo", "litz.pipeline", "litz.lower", "triton") if name in sys.modules])
"""


@pytest.mark.nightly
def test_a_server_starts_from_an_artifact_without_a_compiler_and_drains(tmp_path: Path) -> None:
    setup = setup_of()
    with torch.no_grad():
        pieces.build(setup, weights_of(setup), tmp_path, "default")
    expected = [(prompt, greedy(setup, prompt, 50)) for prompt in prompts(5, seed=4)]
    command = [sys.executable, "-c", SERVER, "--artifact", str(tmp_path), "--port", "0"]

    async def use(server: subprocess.Popen[str], url: str) -> list[Any]:
        async with aiohttp.ClientSession() as session:

            async def one(prompt: list[int]) -> Any:
                async with session.post(
                    url + PATH, json={"prompt": prompt, "max_tokens": 50, "stream": True}
                ) as answer:
                    server.send_signal(signal.SIGTERM)
                    return await streamed(answer)

            return await asyncio.gather(*(one(prompt) for prompt, _ in expected))

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().split()[1]
            found = asyncio.run(use(server, url))
            assert server.stdout.read() == "[]\n"
            assert server.wait(60) == 0
        finally:
            server.kill()
    assert [(tokens, reason) for tokens, _, reason in found] == [(tokens, "length") for _, tokens in expected]


@pytest.mark.nightly
def test_the_load_generator_measures_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sizes = ["--device", "cpu", "--batches", "1", "2", "--lengths", "8", "--context", "32"]
    some = ["--clients", "3", "--prompt", "9", "--tokens", "5", "--rounds", "2", "--json", str(tmp_path / "load.json")]
    load.main(["--peers", "eager", "artifact", "litz", *some, *sizes])
    rows = json.loads((tmp_path / "load.json").read_text())["rows"]
    assert [row["peer"] for row in rows] == ["eager", "artifact", "litz"]
    assert all(row["clients"]["3"]["tokens"] == 30 and row["start_s"] > row["start_cpu_s"] / 8 > 0 for row in rows)
    assert rows[0]["tokens"] == rows[1]["tokens"] == rows[2]["tokens"]
