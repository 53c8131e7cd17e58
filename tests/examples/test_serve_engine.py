"""examples/serve without HTTP: continuous batching, its queue, sampling, the model, and CUDA graphs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from support.no_gpu import gpu_hidden

sys.path.insert(0, str(Path(__file__).parents[2]))
with gpu_hidden():
    from examples.serve import load, model, pieces
    from examples.serve.engine import Refused, sample
    from examples.serve.setup import Setup, load_setup

    from support.small_server import Answer, engine_of, greedy, prompts, running, setup_of, weights_of


def asked(count: int, setup: Setup, **how: Any) -> list[tuple[Answer, list[int]]]:
    """Requests of various lengths, and the tokens that they must get."""
    found = []
    for number, prompt in enumerate(prompts(count)):
        most = 1 + number % 7
        found.append((Answer(prompt, most, **how), greedy(setup, prompt, most)))
    return found


@pytest.mark.parametrize("windows", [(192,), (16, 40, 192)])
def test_tokens_are_those_of_each_request_alone(windows: tuple[int, ...]) -> None:
    """Requests come, end, move to other slots and are read in pieces, beside others."""
    setup = setup_of(windows=windows)
    answers = asked(20, setup)
    with running(engine_of(setup)) as engine:
        for at, (answer, _) in enumerate(answers):
            engine.submit(answer.request)
            time.sleep(0.002 * (at % 3))
    assert [answer.result() for answer, _ in answers] == [expected for _, expected in answers]
    assert {answer.reason for answer, _ in answers} == {"length"}
    assert engine.metrics.tokens == sum(len(expected) for _, expected in answers) > engine.metrics.steps
    assert engine.load() == (0, 0)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 18, 19, 20])
def test_a_request_that_fills_the_context(length: int) -> None:
    """It outgrows a window, and the last piece of its prompt would reach beyond the caches."""
    setup, prompt = setup_of(context=21, windows=(16, 21)), list(range(40, 40 + length))
    with running(engine_of(setup)) as engine:
        engine.submit((answer := Answer(prompt, 21 - length)).request)
        with pytest.raises(ValueError, match="2 to 21 tokens"):
            engine.submit(Answer(prompt, 22 - length).request)
    assert answer.result() == greedy(setup, prompt, 21 - length)


def test_a_token_that_stops_is_the_last() -> None:
    setup = setup_of()
    prompt = prompts(1)[0]
    expected = greedy(setup, prompt, 4)
    with running(engine_of(setup)) as engine:
        engine.submit((answer := Answer(prompt, 9, stop=frozenset(expected[2:3]))).request)
        assert answer.result() == expected[: expected.index(expected[2]) + 1] and answer.reason == "stop"


def test_a_cancelled_request_frees_its_slot() -> None:
    setup = setup_of(batches=(1,), context=4096, windows=(64, 4096))
    first, waits, last = (Answer(prompts(1)[0], most) for most in (3000, 3, 3))
    engine = engine_of(setup)
    for answer in (first, waits, last):
        engine.submit(answer.request)
    engine.cancel(waits.request)
    with running(engine):
        while not first.tokens:
            time.sleep(0.001)
        engine.cancel(first.request)
        assert last.result() == greedy(setup, prompts(1)[0], 3)
    assert (first.reason, waits.reason, last.reason) == ("cancelled", "cancelled", "length")
    assert 0 < len(first.tokens) < 3000 and not waits.tokens
    assert engine.metrics.ended == {"cancelled": 2, "length": 1}


def test_the_queue_has_an_end_and_nobody_waits_for_ever() -> None:
    engine = engine_of(setup_of(), queue=2, patience=0.0)
    answers = [Answer([1], 1) for _ in range(3)]
    for answer in answers[:2]:
        engine.submit(answer.request)
    with pytest.raises(Refused, match="2 requests are waiting") as caught:
        engine.submit(answers[2].request)
    assert caught.value.full
    with running(engine):
        assert [answer.result() for answer in answers[:2]] == [[], []]
    assert [answer.reason for answer in answers] == ["late", "late", ""]
    with pytest.raises(Refused, match="draining") as caught:
        engine.submit(answers[2].request)
    assert not caught.value.full


def test_a_step_that_fails_ends_all_requests() -> None:
    engine = engine_of(setup_of())
    answers = [Answer([1], 9) for _ in range(5)]
    for answer in answers:
        engine.submit(answer.request)
    calls = iter(range(4))
    engine.deliver = lambda events: [next(calls), [one.sink(token, reason) for one, token, reason in events]]
    with pytest.raises(StopIteration):
        engine.run()
    assert "out of order: StopIteration" in engine.state
    with pytest.raises(Refused, match="out of order"):
        engine.submit(Answer([1], 1).request)


def test_an_error_of_a_step_reaches_those_that_wait() -> None:
    setup = setup_of()
    engine = engine_of(setup)
    answers = [Answer([1], 9) for _ in range(5)]
    for answer in answers:
        engine.submit(answer.request)
    steps = engine._pieces

    def broken(*_: Any) -> Any:
        raise RuntimeError("no memory")

    for shape, piece in steps.items():
        if shape.length == 1:
            piece.run = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no memory"):
        engine.run()
    assert [answer.reason for answer in answers] == ["error"] * 5 and engine.load() == (0, 0)


def test_samples_follow_the_probabilities() -> None:
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log().repeat(8, 1)
    draws = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 0.999])
    ones = torch.ones(8)
    assert sample(logits, ones, ones, draws).tolist() == [1, 1, 3, 3, 2, 2, 0, 0]
    # The likeliest that make up 0.7: 0.5 and 0.25, of 0.75 together.
    assert sample(logits, ones, 0.7 * ones, draws).tolist() == [1, 1, 1, 3, 3, 3, 3, 3]
    for temperature in (1e-3, 1e-300):
        assert sample(logits, temperature * ones, ones, draws).tolist() == [1] * 8
    assert sample(logits, ones, 1e-9 * ones, draws).tolist() == [1] * 8


def test_a_seed_decides_whoever_is_beside() -> None:
    setup = setup_of()
    found, expected = [], greedy(setup, [5], 6)
    for beside in (0, 2):
        with running(engine_of(setup)) as engine:
            greedy_one = Answer([5], 6)
            drawn = Answer([7, 8], 12, temperature=2.0, seed=3)
            for answer in (*(Answer([9], 12, temperature=1.0) for _ in range(beside)), greedy_one, drawn):
                engine.submit(answer.request)
            found.append(drawn.result())
            assert greedy_one.result() == expected
    assert found[0] == found[1] != greedy(setup, [7, 8], 12)


def test_the_model_is_transformers_llama(tmp_path: Path) -> None:
    """Weights from a folder: tokens of a full forward pass, and of the folder that `build` writes beside the steps."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, initializer_range=0.3)).eval()
    llama.save_pretrained(tmp_path / "llama")
    config, weights = model.load_llama(str(tmp_path / "llama"), 64, "cpu", torch.float32)
    setup = Setup(config, "float32", "cpu", (1,), (16,), (64,), 0, bytes=False)
    ids = torch.randint(0, 97, (1, 12))
    with torch.no_grad():
        logits = model.step(config, ids, torch.arange(12)[None], torch.tensor([11]), weights, setup.caches())[1]
        torch.testing.assert_close(logits, llama(ids).logits[:, -1], rtol=1e-4, atol=1e-4)
    pieces.save(setup, weights, tmp_path)
    again, loaded = load_setup(tmp_path)
    assert again == setup
    torch.testing.assert_close(loaded, weights)


@pytest.mark.usefixtures("warm_interpreters")
def test_the_load_generator_needs_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    sizes = ["--device", "cpu", "--batches", "2", "--lengths", "8", "--context", "32"]
    load.main(
        ["--in-process", "--peers", "eager", "--clients", "1", "3", "--prompt", "9", "--tokens", "5", "--rounds", "2"]
        + ["--json", str(tmp_path / "load.json"), *sizes]
    )
    (row,) = json.loads((tmp_path / "load.json").read_text())["rows"]
    assert [one["tokens"] for one in row["clients"].values()] == [10, 30]
    assert row["start_s"] > 0 and all(one["tokens_per_s"] > 0 for one in row["clients"].values())
    assert capsys.readouterr().out.splitlines()[-1].endswith("5/5")


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["litz", "inductor"])
def test_compiled_tokens_are_eagers(source: str) -> None:
    setup = setup_of(windows=(40, 192))
    answers = asked(9, setup)
    with running(engine_of(setup, source)) as engine:
        for answer, _ in answers:
            engine.submit(answer.request)
    assert [answer.result() for answer, _ in answers] == [expected for _, expected in answers]


@pytest.mark.gpu
@pytest.mark.parametrize("source, graphs", [("artifact", "engine"), ("eager", "engine"), ("litz", "compiler")])
def test_recorded_tokens_are_eagers(source: str, graphs: str, tmp_path: Path) -> None:
    """CUDA graphs of batches: requests come and go, and their keys move, under recordings at fixed addresses."""
    setup = Setup(**{**setup_of(batches=(1, 2, 4), windows=(40, 192)).__dict__, "device": "cuda"})
    if source == "artifact":
        pieces.build(setup, weights_of(setup), tmp_path, "default")
    answers = asked(12, setup)
    with running(engine_of(setup, source, tmp_path, graphs)) as engine:
        for answer, _ in answers:
            engine.submit(answer.request)
    assert [answer.result() for answer, _ in answers] == [expected for _, expected in answers]
    recorded = [piece._graph is not None for shape, piece in engine._pieces.items() if shape.length == 1]
    assert recorded == [graphs == "engine"] * 6
