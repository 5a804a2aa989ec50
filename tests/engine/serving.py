"""A real server on loopback, in this process or in one of its own, for the tests of server and clients."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class ServerProcess:
    """`trnprof engine serve` as a user starts it."""

    port: int
    child: subprocess.Popen[str]

    def ask(self, body: dict[str, Any] | str, *, method: str = "POST", path: str = "/v1/completions") -> Answer:
        """Send a request; its answer can be read piece by piece."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body if isinstance(body, str) else json.dumps(body))
        return Answer(connection, connection.getresponse())

    def metrics(self) -> dict[str, float]:
        """/metrics without the prefix of its names."""
        text = self.ask("", method="GET", path="/metrics").rest().decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name.removeprefix("trnprof_engine_"): float(value) for name, value in lines}

    def wait_idle(self, seconds: float = 60.0) -> dict[str, float]:
        """Until nothing waits or runs; then every page and slot is free or cached, as /metrics says. The metrics."""
        until = time.monotonic() + seconds
        while (now := self.metrics())["waiting"] or now["running"]:
            assert time.monotonic() < until, f"{now['waiting']:g} wait and {now['running']:g} run"
            time.sleep(0.05)
        assert now["pages_free"] + now["pages_cached"] == now["pages"]
        assert now["slots_free"] + now["snapshots_cached"] == now["slots"]
        return now

    def memory_bytes(self) -> int:
        """Resident now; Linux only."""
        status = Path(f"/proc/{self.child.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


@dataclass(frozen=True)
class Answer:
    """An HTTP answer that is being read."""

    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse

    @property
    def status(self) -> int:
        return self.response.status

    def begin(self) -> None:
        """Wait for the first bytes of the body."""
        assert self.response.read(10)

    def rest(self) -> bytes:
        """What is left of the body."""
        return self.response.read()

    def json(self) -> Any:
        """The whole body."""
        return json.loads(self.rest())

    def hang_up(self) -> None:
        """Close the socket, whatever is still to come."""
        self.response.close()
        self.connection.close()


@contextmanager
def serving(*options: str, port: int | None = None) -> Iterator[ServerProcess]:
    """`trnprof engine serve` with these options on a free port, killed at the end if it still runs."""
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    command = [sys.executable, "-m", "trnprof", "engine", "serve", "--threads", "1", "--port", str(port), *options]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    server = ServerProcess(port, child)
    try:
        for _ in range(600):
            try:
                if server.ask("", method="GET", path="/health").status == 200:
                    break
            except OSError:
                assert child.poll() is None, child.communicate()[1]
                time.sleep(0.1)
        else:
            raise AssertionError("the server did not start")
        yield server
    finally:
        child.kill()
        child.communicate(timeout=20)
