"""A real server on loopback in this process, for the tests of server and clients."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from trnprof.engine.build import Served
from trnprof.engine.server import make_app


@dataclass(frozen=True)
class Running:
    """Where it listens."""

    port: int
    served: Served
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_idle(self, seconds: float = 20.0) -> None:
        """Until no request is left, then the accounts must close."""
        until = time.monotonic() + seconds
        scheduler = self.served.engine.scheduler
        while not scheduler.is_idle:
            assert time.monotonic() < until, f"requests are left: {list(scheduler.requests)[:5]}"
            time.sleep(0.01)
        self.served.engine.call(scheduler.cache.check_idle).result(seconds)
        assert scheduler.lanes.free_count == scheduler.lanes.count


@contextmanager
def running(served: Served, *, api_key: str | None = None) -> Iterator[Running]:
    """Serve on a free port of 127.0.0.1 until the block ends."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        config = uvicorn.Config(make_app(served, api_key=api_key), log_level="warning", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield Running(listener.getsockname()[1], served, server)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the server did not stop"
