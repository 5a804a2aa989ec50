"""OpenAI's completions and chat over HTTP, on top of one engine.

The engine runs in its own thread; here is one event loop that parses, waits and writes. A request whose client went away
is aborted; a full queue is 429, a client's mistake 400 with the field's name, a step that raised 500 for its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import itertools
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from trnprof.engine.build import Served
from trnprof.engine.loop import StoppedError
from trnprof.engine.metrics import Metrics
from trnprof.engine.protocol import Asked, BadRequest, Envelope, StopFinder, error_body, parse_request, usage
from trnprof.engine.request import FinishReason, Request
from trnprof.engine.scheduler import QueueFullError, Update
from trnprof.errors import UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

MAX_BODY_BYTES = 32 << 20
SESSION_HEADER = "x-correlation-id"
"""Where AgentX and AIPerf put the session; a router keeps a session on one instance by it."""


def is_loopback(host: str) -> bool:
    """Is this address only reachable from this machine?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, api_key: str | None) -> None:
    """Raises: UsageError if the server would be reachable from other machines without a key."""
    if not is_loopback(host) and not api_key:
        raise UsageError(
            f"--host {host} can be reached from other machines; name a key that clients must send "
            "(TRNPROF_ENGINE_API_KEY), or bind 127.0.0.1"
        )


def make_app(served: Served, *, api_key: str | None = None) -> Starlette:
    """The ASGI application; it starts the engine's thread with its lifespan and stops it at the end."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    server = Server(served, api_key)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        served.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(served.engine.stop)

    app = Starlette(
        lifespan=lifespan,
        routes=[
            Route("/v1/completions", server.completions, methods=["POST"]),
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/health", server.health),
            Route("/metrics", server.metrics_page),
        ],
    )
    app.state.server = server
    return app


class Server:
    """Handlers. One instance an application."""

    def __init__(self, served: Served, api_key: str | None) -> None:
        self.served, self.api_key = served, api_key
        self.metrics = Metrics()
        self._numbers = itertools.count(1)

    # Handlers

    async def completions(self, http: HttpRequest) -> Response:
        """POST /v1/completions"""
        return await self._answer(http, chat=False)

    async def chat(self, http: HttpRequest) -> Response:
        """POST /v1/chat/completions"""
        return await self._answer(http, chat=True)

    async def models(self, http: HttpRequest) -> Response:
        """GET /v1/models"""
        if not self._may(http):
            return self._refuse(401, "the API key is missing or wrong", "authentication_error")
        model = {
            "id": self.served.name,
            "object": "model",
            "created": 0,
            "owned_by": "trnprof",
            "max_model_len": self.served.engine.scheduler.shapes.max_context,
        }
        return _json(200, {"object": "list", "data": [model]})

    async def health(self, http: HttpRequest) -> Response:
        """GET /health: 200 while the engine's thread lives."""
        failure = self.served.engine.failure
        return (
            _json(200, {"status": "ok"}) if failure is None else _json(503, {"status": "failed", "why": str(failure)})
        )

    async def metrics_page(self, http: HttpRequest) -> Response:
        """GET /metrics"""
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(self.metrics.text(self.served.engine.scheduler))

    # One request

    async def _answer(self, http: HttpRequest, *, chat: bool) -> Response:
        received = perf_counter_ns()
        if not self._may(http):
            return self._refuse(401, "the API key is missing or wrong", "authentication_error")
        if self.served.engine.is_full:  # told before the body is read: neither side pays for what is refused
            return self._refuse(429, "the queue is full; try again later", "rate_limit_error")
        try:
            asked = parse_request(await _read_body(http), self.served.tokenizer, chat=chat)
            stream = await self._submit(asked, received, http.headers.get(SESSION_HEADER))
        except BadRequest as error:
            return self._refuse(error.status, error.message, "invalid_request_error", error.field)
        except QueueFullError as error:
            return self._refuse(429, error.message, "rate_limit_error")
        except UsageError as error:
            return self._refuse(400, error.message, "invalid_request_error")
        except StoppedError as error:
            return self._refuse(503, str(error), "server_error")
        if asked.stream:
            from starlette.responses import StreamingResponse

            return StreamingResponse(
                self._events(stream, asked), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
            )
        return await self._whole(http, stream, asked)

    async def _submit(self, asked: Asked, received: int, session: str | None) -> _Stream:
        engine, number = self.served.engine, next(self._numbers)
        room = engine.scheduler.shapes.max_context - len(asked.prompt) - engine.scheduler.draft
        request = Request(
            f"{'chatcmpl' if asked.chat else 'cmpl'}-{number}",
            asked.prompt,
            asked.sampling(room=room, seed=number),
            session=session,
        )
        request.timing.received = received
        stream = _Stream(request, asyncio.get_running_loop())
        try:
            await asyncio.wrap_future(engine.call(lambda: engine.submit(request, stream.listener)))
        except asyncio.CancelledError:
            engine.abort(request.id)
            raise
        return stream

    async def _events(self, stream: _Stream, asked: Asked) -> AsyncIterator[bytes]:
        request, envelope = stream.request, self._envelope(stream.request, asked)
        try:
            first = True
            async for text, finish in self._pieces(stream, asked):
                if finish == "error":
                    yield _event(error_body(request.error or "the step failed", kind="server_error"))
                    break
                yield _event(envelope.chunk(text, finish, first=first))
                if first:  # the chunk before has been handed to the transport
                    request.timing.first_sent, first = perf_counter_ns(), False
            else:
                if asked.include_usage:
                    yield _event(envelope.usage_chunk(_usage(request)))
            yield b"data: [DONE]\n\n"
        finally:
            self._close(request)

    async def _whole(self, http: HttpRequest, stream: _Stream, asked: Asked) -> Response:
        request = stream.request
        gone = asyncio.create_task(_disconnected(http))
        collect = asyncio.create_task(self._collect(stream, asked))
        try:
            await asyncio.wait({gone, collect}, return_when=asyncio.FIRST_COMPLETED)
            if not collect.done():
                return self._refuse(499, "the client went away", "client_closed_request")
            text, finish = collect.result()
            if finish == "error":
                return self._refuse(500, request.error or "the step failed", "server_error")
            request.timing.first_sent = perf_counter_ns()
            return _json(200, self._envelope(request, asked).whole(text, finish, _usage(request)))
        finally:
            gone.cancel()
            collect.cancel()
            self._close(request)

    async def _collect(self, stream: _Stream, asked: Asked) -> tuple[str, str]:
        parts, reason = [], ""
        async for text, finish in self._pieces(stream, asked):
            parts.append(text)
            reason = finish or reason
        return "".join(parts), reason

    async def _pieces(self, stream: _Stream, asked: Asked) -> AsyncIterator[tuple[str, str | None]]:
        """(text, finish reason or None) as the engine goes on; a stop text ends the request."""
        decoder, stops = self.served.tokenizer.stream(), StopFinder(asked.stops)
        while True:
            tokens, reason = await stream.queue.get()
            text = decoder.push(tokens)
            if reason is not None:
                text += decoder.finish()
            text = stops.push(text, last=reason is not None)
            if stops.found:
                self.served.engine.abort(stream.request.id)
                yield text, "stop"
                return
            yield text, reason
            if reason is not None:
                return

    def _close(self, request: Request) -> None:
        if request.finish_reason is None:  # the client went away, or a stop text was found
            self.served.engine.abort(request.id)
        self.metrics.add(request, ended=perf_counter_ns())

    def _envelope(self, request: Request, asked: Asked) -> Envelope:
        return Envelope(request.id, asked.model or self.served.name, int(time.time()), asked.chat)

    def _may(self, http: HttpRequest) -> bool:
        if not self.api_key:
            return True
        given = http.headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.api_key.encode("utf-8", "replace"))

    def _refuse(self, status: int, message: str, kind: str, field: str | None = None) -> Response:
        self.metrics.refused[str(status)] += 1
        return _json(status, error_body(message, kind=kind, field=field))


class _Stream:
    """The engine's news of one request, brought from its thread into the event loop."""

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.queue: asyncio.Queue[tuple[list[int], str | None]] = asyncio.Queue()
        self._loop = loop

    @property
    def listener(self) -> Callable[[Update], None]:
        """For Engine.submit."""

        def listen(update: Update) -> None:
            reason = str(update.request.finish_reason) if update.finished else None
            if reason == FinishReason.ABORT:
                reason = str(FinishReason.STOP)
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self.queue.put_nowait, (update.new_tokens, reason))

        return listen


async def _read_body(http: HttpRequest) -> bytes:
    body = bytearray()
    async for chunk in http.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BadRequest(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB", status=413)
    return bytes(body)


async def _disconnected(http: HttpRequest) -> None:
    """Returns when the client goes away; the body has been read, so the next message can only be that."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _usage(request: Request) -> dict[str, Any]:
    return usage(len(request.prompt), len(request.answer), request.cached_tokens)


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document, separators=(',', ':'))}\n\n".encode()


def _json(status: int, document: dict[str, Any]) -> Response:
    from starlette.responses import JSONResponse

    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse(document, status_code=status, headers=headers)


def serve(served: Served, *, host: str, port: int, api_key: str | None = None) -> None:
    """Serve until SIGINT or SIGTERM; requests that run get 30 s to finish.

    Raises: UsageError if other machines could reach it without a key.
    """
    import uvicorn

    check_exposure(host, api_key)
    # uvicorn raises the signal that stopped it once more when it is done; what comes after serving still has to run.
    stopped = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        uvicorn.run(
            make_app(served, api_key=api_key),
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=30,
        )
    finally:
        for number, handler in stopped.items():
            signal.signal(number, handler)
