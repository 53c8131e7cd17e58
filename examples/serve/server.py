"""An LLM server: HTTP around the engine, in one process.

    python -m examples.serve.server --model tiny --port 8000            compiles at its start
    python -m examples.serve.server --artifact /tmp/tiny --port 8000    starts from what `build` has written

The port is open when all is compiled. SIGTERM: new requests get a 503, those that are there end, and the status is 0.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import signal
import sys
import threading
from collections.abc import Sequence

from aiohttp import web

from .api import Answer, BadRequest, error, make_request
from .engine import Engine, Refused, Request, dispatch
from .start import add_engine_arguments, make_engine

Events = asyncio.Queue[tuple[int | None, str | None]]
STATUS = {"late": 503, "error": 500, "cancelled": 503}
"""Of answers that end before their first token."""


class Server:
    """Handlers of one engine, which runs in a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._numbers = engine, itertools.count(1)

    def runner(self) -> web.AppRunner:
        """Returns what serves: a handler whose client goes is cancelled."""
        app = web.Application()
        app.add_routes([web.get("/health", self.health), web.get("/metrics", self.metrics)])
        app.add_routes([web.post("/v1/completions", self.completions)])
        return web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=10.0)

    async def health(self, _: web.Request) -> web.Response:
        state, (waiting, running) = self._engine.state, self._engine.load()
        facts = {"status": state, "waiting": waiting, "running": running}
        return web.json_response(facts, status=200 if state == "ready" else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._engine.metrics.text(*self._engine.load()))

    async def completions(self, http: web.Request) -> web.StreamResponse:
        events: Events = asyncio.Queue()
        try:
            request, stream = make_request(
                await http.read(), self._engine.setup, lambda token, reason: events.put_nowait((token, reason))
            )
            self._engine.submit(request)
        except BadRequest as problem:
            return web.json_response(error(400, str(problem)), status=400)
        except Refused as problem:
            status = 429 if problem.full else 503
            return web.json_response(
                error(status, f"{problem}; try again"), status=status, headers={"Retry-After": "1"}
            )
        try:
            answer = Answer(next(self._numbers), request, self._engine.setup)
            return await (self._streamed(http, answer, events) if stream else self._whole(request, answer, events))
        finally:  # also where the client has gone: aiohttp cancels the handler then
            self._engine.cancel(request)

    async def _whole(self, request: Request, answer: Answer, events: Events) -> web.Response:
        reason = None
        while reason is None:
            _, reason = await events.get()
        return web.json_response(answer.whole(reason)) if reason not in STATUS else _failed(reason)

    async def _streamed(self, http: web.Request, answer: Answer, events: Events) -> web.StreamResponse:
        token, reason = await events.get()
        if reason in STATUS:
            return _failed(reason)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(http)
        while True:
            await response.write(b"data: " + json.dumps(answer.chunk(token, reason)).encode() + b"\n\n")
            if reason is not None:
                break
            token, reason = await events.get()
        await response.write(b"data: [DONE]\n\n")
        return response


def _failed(reason: str) -> web.Response:
    status = STATUS[reason]
    return web.json_response(error(status, f"the request ended: {reason}; try again"), status=status)


async def serve(engine: Engine, host: str, port: int, drain: float) -> None:
    """Serves until SIGTERM or SIGINT, or until the engine fails. drain: seconds that requests then have to end."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    engine.deliver = lambda events: loop.call_soon_threadsafe(dispatch, events)

    def work() -> None:
        try:
            engine.run()
        finally:
            loop.call_soon_threadsafe(stop.set)

    thread = threading.Thread(target=work, name="engine", daemon=True)
    runner = Server(engine).runner()
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=1024)
    await site.start()
    thread.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    print(f"ready: http://{host}:{runner.addresses[0][1]}", flush=True)
    await stop.wait()
    engine.close()
    await asyncio.to_thread(thread.join, drain)
    engine.abandon()
    await asyncio.to_thread(thread.join, 10.0)
    await runner.cleanup()  # waits for the handlers, which have all their events now


def main(argv: Sequence[str] | None = None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until it serves
    parser = argparse.ArgumentParser(prog="python -m examples.serve.server", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    parser.add_argument("--drain", type=float, default=30.0, help="seconds that requests have after SIGTERM")
    add_engine_arguments(parser)
    args = parser.parse_args(argv)
    engine = make_engine(args)
    gc.freeze()  # what a start leaves lives as long as the process: no collection looks at it again
    asyncio.run(serve(engine, args.host, args.port, args.drain))
    if engine.failure:
        sys.exit(engine.failure)


if __name__ == "__main__":
    main()
