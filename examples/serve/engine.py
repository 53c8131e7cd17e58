"""Continuous batching: requests come and go between steps, and every step makes a token for each that runs.

In: requests, from any thread. Out: events, a token or an end, from the thread that calls `Engine.run`. Nothing here
knows of HTTP.

A request that runs has a slot of the caches. The slots in use are the first ones, so a step of a batch sees them as one
view: when a request ends, the last one's keys and values move to its slot. Rows that fill a batch up write into slots
that nobody uses.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .metrics import Metrics
from .pieces import Piece, views
from .setup import Setup, Shape

Sink = Callable[[int | None, str | None], None]
"""What takes a request's tokens: (token, None), and at the end (None, reason)."""
Events = Sequence[tuple["Request", int | None, str | None]]
"""For each the request, and what its sink takes."""


class Refused(Exception):
    """A request that the engine does not take. full: a later try may do."""

    def __init__(self, problem: str, full: bool) -> None:
        super().__init__(problem)
        self.full = full


@dataclass(eq=False)
class Request:
    """What is asked for. most: new tokens at most. temperature: 0 takes the likeliest token. top_p: only the likeliest
    tokens of this probability together. stop: tokens that end the answer. made: the new tokens so far."""

    prompt: tuple[int, ...]
    most: int
    sink: Sink
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: frozenset[int] = frozenset()
    made: list[int] = field(default_factory=list)
    cancelled: bool = False
    arrived: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def position(self) -> int:
        """Where the last token's keys go."""
        return len(self.prompt) + len(self.made) - 1


class Engine:
    """Runs requests through the steps of a setup.

    queue: requests that may wait for a slot. patience: seconds that one may wait. budget: tokens of prompts that are
    read before the next step for those that run. deliver: takes the events of a step, by default to their sinks."""

    def __init__(
        self,
        setup: Setup,
        pieces: Mapping[Shape, Piece],
        caches: Sequence[Tensor],
        queue: int = 256,
        patience: float = 60.0,
        budget: int = 1024,
    ) -> None:
        self.setup, self.metrics = setup, Metrics()
        self._pieces, self._caches = pieces, caches
        self._queue, self._patience, self._budget = queue, patience, budget
        self._views = {shape: views(caches, shape) for shape in pieces if shape.length == 1}
        self._waiting, self._running = deque[Request](), list[Request]()
        self._changed = threading.Condition()
        self._closed = False
        self._events: list[tuple[Request, int | None, str | None]] = []
        self.deliver: Callable[[Events], object] = dispatch
        self.failure = ""

    @property
    def state(self) -> str:
        """ready, draining, or why it failed."""
        return self.failure or ("draining" if self._closed else "ready")

    def load(self) -> tuple[int, int]:
        """Returns how many requests wait, and how many run."""
        return len(self._waiting), len(self._running)

    def submit(self, request: Request) -> None:
        """Takes a request, whose events come from now on. Errors: Refused, ValueError for one that fits no slot."""
        if not request.prompt or request.most < 1 or len(request.prompt) + request.most > self.setup.config.context:
            raise ValueError(f"a prompt and its answer are 2 to {self.setup.config.context} tokens")
        with self._changed:
            if self.state != "ready":
                raise Refused(f"the server is {self.state}", full=False)
            if len(self._waiting) >= self._queue:
                self.metrics.ended["refused"] += 1
                raise Refused(f"{self._queue} requests are waiting", full=True)
            request.arrived = time.monotonic()
            self._waiting.append(request)
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Ends a request before the next step, if it has not ended."""
        request.cancelled = True

    def close(self) -> None:
        """Takes no requests from now on. `run` returns when those that are there have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def abandon(self) -> None:
        """Ends all requests before the next step."""
        with self._changed:
            for request in (*self._waiting, *self._running):
                request.cancelled = True

    def run(self) -> None:
        """Works until it is closed, and nobody waits. An error ends all requests, and is raised."""
        try:
            with torch.no_grad():
                while self._work_is_there():
                    self._drop()
                    self._admit()
                    if self._running:
                        self._step()
                    self._flush()
        except BaseException as error:
            with self._changed:
                self.failure = f"out of order: {type(error).__name__}: {error}"
                left = [*self._waiting, *self._running]
                self._waiting.clear()
                self._running.clear()
            for request in left:
                self._end(request, "error")
            self._flush()
            raise

    def _work_is_there(self) -> bool:
        with self._changed:
            while not (self._waiting or self._running or self._closed):
                self._changed.wait()
            return bool(self._waiting or self._running)

    def _drop(self) -> None:
        """Ends requests that were cancelled, and those that have waited too long."""
        for slot in reversed(range(len(self._running))):
            if self._running[slot].cancelled:
                self._free(slot, "cancelled")
        late = time.monotonic() - self._patience
        with self._changed:
            dropped = [request for request in self._waiting if request.cancelled or request.arrived < late]
            for request in dropped:
                self._waiting.remove(request)
        for request in dropped:
            self._end(request, "cancelled" if request.cancelled else "late")

    def _admit(self) -> None:
        """Reads prompts, first come, first served, while there are slots."""
        left = self._budget
        while left > 0 and len(self._running) < self.setup.slots:
            with self._changed:
                if not self._waiting:
                    return
                request = self._waiting.popleft()
                self._running.append(request)  # from here on an error of a step ends it too
            left -= len(request.prompt)
            token, logits = self._read(request, len(self._running) - 1)
            self.metrics.prompt_tokens += len(request.prompt)
            self._take(len(self._running) - 1, self._choose([request], token, logits)[0])
            self._flush()  # a first token waits for nobody

    def _read(self, request: Request, slot: int) -> tuple[Tensor, Tensor]:
        """Reads a prompt into a slot, in pieces; returns its next token and logits. What fills a piece up is written
        behind the prompt, where each position is written again before it is looked at, or at the end of the context,
        which nobody looks at: the last token of an answer is not read."""
        for start in range(0, len(request.prompt), self.setup.lengths[-1]):
            part = list(request.prompt[start : start + self.setup.lengths[-1]])
            length = _fitting(self.setup.lengths, len(part))
            shape = Shape(1, length, _fitting(self.setup.windows, start + length))
            padded, places = part + [0] * (length - len(part)), list(range(start, start + length))
            seen = views(self._caches, shape, slot)
            found = self._pieces[shape]([padded], [places], [len(part) - 1], seen)
        return found

    def _step(self) -> None:
        """Makes the next token of each request that runs."""
        running = list(self._running)
        batch = _fitting(self.setup.batches, len(running))
        window = _fitting(self.setup.windows, max(request.position for request in running) + 1)
        shape, empty = Shape(batch, 1, window), [[0]] * (batch - len(running))
        tokens = [[request.made[-1]] for request in running] + empty
        places = [[request.position] for request in running] + empty
        likeliest, logits = self._pieces[shape](tokens, places, [0] * batch, self._views[shape])
        chosen = self._choose(running, likeliest, logits)
        self.metrics.steps += 1
        for slot in reversed(range(len(running))):  # backwards: what moves to a free slot has had its turn
            self._take(slot, chosen[slot])

    def _choose(self, requests: Sequence[Request], likeliest: Tensor, logits: Tensor) -> list[int]:
        """Returns a token for each request, of the first rows."""
        found: list[int] = likeliest.tolist()
        warm = [row for row, request in enumerate(requests) if request.temperature > 0]
        if warm:
            drawn = [(requests[row].temperature, requests[row].top_p, requests[row].random.random()) for row in warm]
            tokens = sample(logits[warm], *torch.tensor(drawn, device=logits.device).T)
            for row, token in zip(warm, tokens.tolist(), strict=True):
                found[row] = token
        return found

    def _take(self, slot: int, token: int) -> None:
        """Takes a token of the request in a slot, and ends the request if that was the last."""
        request = self._running[slot]
        if not request.made:
            self.metrics.first_token(time.monotonic() - request.arrived)
        request.made.append(token)
        self.metrics.tokens += 1
        self._events.append((request, token, None))
        if token in request.stop:
            self._free(slot, "stop")
        elif len(request.made) == request.most:
            self._free(slot, "length")

    def _free(self, slot: int, reason: str) -> None:
        """Ends the request in a slot, to which the last one moves."""
        request, last = self._running[slot], self._running.pop()
        if request is not last:
            self._running[slot] = last
            for cache in self._caches:
                cache[slot, :, : last.position + 1].copy_(cache[len(self._running), :, : last.position + 1])
        self._end(request, reason)

    def _end(self, request: Request, reason: str) -> None:
        self.metrics.ended[reason] += 1
        self._events.append((request, None, reason))

    def _flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self.deliver(events)


def dispatch(events: Events) -> None:
    """Gives events to their requests' sinks."""
    for request, token, reason in events:
        request.sink(token, reason)


def sample(logits: Tensor, temperatures: Tensor, top_ps: Tensor, draws: Tensor) -> Tensor:
    """Returns a token of each row, (rows,). logits: (rows, vocabulary). draws: from 0 up to 1; 0 is the likeliest."""
    likely, tokens = (logits / temperatures[:, None].clamp(min=1e-4)).softmax(-1).sort(dim=-1, descending=True)
    sums = likely.cumsum(-1)
    kept = sums.masked_fill(sums - likely >= top_ps[:, None], 0.0).amax(-1)
    at = torch.searchsorted(sums, (draws * kept)[:, None], right=True).clamp(max=logits.shape[-1] - 1)
    return tokens.gather(-1, at)[:, 0]


def _fitting(sizes: Sequence[int], wanted: int) -> int:
    """The least size that is enough, or the greatest there is."""
    return next((size for size in sizes if size >= wanted), sizes[-1])
