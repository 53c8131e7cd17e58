"""The bodies of /v1/completions: in, JSON and a setup; out, a `Request`, and the JSON of answers.

Text is tokens by its bytes: token 65 is "A". Tokens beyond 255 have no text.
"""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from .engine import Request, Sink
from .setup import Setup

MOST = 16
"""New tokens, where a body does not say."""


class BadRequest(ValueError):
    """What is wrong with a body, and what to do."""


def make_request(data: bytes, setup: Setup, sink: Sink) -> tuple[Request, bool]:
    """Returns the request of a body, and whether its answer is to be streamed. Errors: BadRequest."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON ({error}); send an object with a prompt") from None
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object; send an object with a prompt")
    unknown = sorted(set(body) - {"prompt", *_FIELDS})
    if unknown:
        known = ", ".join(["prompt", *_FIELDS])
        raise BadRequest(f"unknown fields: {', '.join(unknown)}; leave them out, this server knows {known}")
    found = {name: _field(name, body.get(name)) for name in _FIELDS}
    prompt, most = _prompt(body.get("prompt"), setup), found["max_tokens"]
    if len(prompt) + most > setup.config.context:
        raise BadRequest(
            f"{len(prompt)} tokens of prompt and {most} new ones are more than the context of {setup.config.context}; "
            "shorten the prompt or lower max_tokens"
        )
    stop = frozenset(found["stop_token_ids"])
    settings = (found["temperature"], found["top_p"], found["seed"], stop)
    return Request(prompt, most, sink, *settings), found["stream"]


def _prompt(prompt: Any, setup: Setup) -> tuple[int, ...]:
    if isinstance(prompt, str):
        if not setup.bytes:
            raise BadRequest("the prompt is text, and this server has no tokenizer of the model; send token ids")
        prompt = list(prompt.encode(errors="replace"))
    size = setup.config.vocabulary
    if not isinstance(prompt, list) or not prompt:
        raise BadRequest("prompt is missing or empty; send text, or a list of token ids")
    if not all(type(token) is int and 0 <= token < size for token in prompt):
        raise BadRequest(f"prompt has something else than token ids; ids are whole numbers from 0 to {size - 1}")
    return tuple(prompt)


def _number(value: Any) -> bool:
    return type(value) in (int, float)


_FIELDS: Mapping[str, tuple[Any, Callable[[Any], bool], str]] = {
    "max_tokens": (MOST, lambda value: type(value) is int and value >= 1, "a whole number, 1 or more"),
    "temperature": (0.0, lambda value: _number(value) and 0 <= value <= 100, "a number from 0 to 100"),
    "top_p": (1.0, lambda value: _number(value) and 0 < value <= 1, "a number above 0, 1 at most"),
    "seed": (None, lambda value: type(value) is int, "a whole number"),
    "stop_token_ids": (
        (),
        lambda value: isinstance(value, list) and all(type(token) is int for token in value),
        "a list of token ids",
    ),
    "stream": (False, lambda value: type(value) is bool, "true or false"),
    "model": ("", lambda value: isinstance(value, str), "a text"),
}
"""What a body may have: the default, what is allowed, and that in words."""


def _field(name: str, value: Any) -> Any:
    default, allowed, words = _FIELDS[name]
    if value is None:
        return default
    if not allowed(value):
        raise BadRequest(f"{name} is {json.dumps(value)[:80]}; it must be {words}")
    return value


class Answer:
    """What is sent for one request: the whole, or a chunk for each token."""

    def __init__(self, number: int, request: Request, setup: Setup) -> None:
        self._head = {"id": f"cmpl-{number}", "object": "text_completion", "created": int(time.time())}
        self._request, self._text = request, setup.bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def chunk(self, token: int | None, reason: str | None) -> dict[str, Any]:
        """Returns what is streamed for an event. A character of several bytes comes with its last one."""
        data = bytes([token]) if token is not None and token < 256 else b""
        return self._made(self._decoder.decode(data, token is None), [] if token is None else [token], reason)

    def whole(self, reason: str) -> dict[str, Any]:
        """Returns the answer of a request that has ended."""
        made = self._request.made
        text = bytes(token for token in made if token < 256).decode(errors="replace")
        count = len(self._request.prompt)
        usage = {"prompt_tokens": count, "completion_tokens": len(made), "total_tokens": count + len(made)}
        return {**self._made(text, made, reason), "usage": usage}

    def _made(self, text: str, tokens: list[int], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text if self._text else "", "token_ids": tokens, "finish_reason": reason}
        return {**self._head, "choices": [choice]}


def error(status: int, message: str) -> dict[str, Any]:
    """Returns the JSON of an error."""
    return {"error": {"message": message, "code": status}}
