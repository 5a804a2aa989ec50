"""What goes wrong around a server: clients that vanish or talk nonsense, floods, kernels that raise, signals.

The server is a process of its own wherever a fault can be made from outside. After each fault others are served, and when
nothing runs every page and state slot is free or cached, as its own /metrics says.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")
httpx = pytest.importorskip("httpx", reason="httpx (extra engine-test) is the client of these tests")
pytest.importorskip("uvicorn", reason="the engine extra is not installed")

from tests.engine.serving import ServerProcess, running, serving  # noqa: E402
from trnprof.engine.build import open_engine  # noqa: E402
from trnprof.engine.config import EngineConfig  # noqa: E402
from trnprof.errors import InconsistencyError  # noqa: E402


def asks(prompt: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | fields


def streamed_text(body: bytes) -> str:
    """The text of a streamed answer that ended as it should."""
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """call(0) to call(count - 1), each in a thread; their results."""
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        results[number] = call(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving("--model", "tiny-gdn", "--decode-rows", "1,4,16", "--contexts", "1024,8192") as up:
        yield up


@pytest.mark.slow
def test_clients_that_hang_up_in_the_middle(server: ServerProcess) -> None:
    """Of sixteen streams every second client goes away after its first piece: the others get what they get alone, and
    nobody computes the 8,000 tokens that the eight had asked for."""
    alone = [server.ask(asks(f"stream {i}", 60)).json()["choices"][0]["text"] for i in range(1, 16, 2)]
    before = server.wait_idle()["steps_total"]

    def client(number: int) -> str | None:
        if number % 2:
            return streamed_text(server.ask(asks(f"stream {number}", 60, stream=True)).rest())
        answer = server.ask(asks(f"stream {number}", 8000, stream=True))
        answer.begin()
        answer.hang_up()
        return None

    assert together(16, client)[1::2] == alone
    assert server.wait_idle()["steps_total"] - before < 2000


@pytest.mark.slow
def test_broken_clients(server: ServerProcess) -> None:
    """Not HTTP, half a head, less body than announced, more than is taken, too long, not JSON: each is told or dropped."""

    def send(*pieces: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
            return client.recv(4096)

    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    assert b" 400 " in send(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    assert send(head) == b""
    send(head + b"Content-Length: 1000\r\n\r\n", b'{"prompt": "abc", ')
    assert b" 400 " in send(head + b"Content-Length: 11\r\n\r\n", b'{"prompt": ')
    assert server.ask("[" * 200_000).status == 400
    assert server.ask(json.dumps({"prompt": "x" * 9000})).status == 400
    too_large = server.ask(json.dumps({"prompt": "x" * (33 << 20)}))
    assert too_large.status == 413 and "32 MiB" in too_large.json()["error"]["message"]
    assert server.ask(asks("still here", 3)).status == 200
    server.wait_idle()


def flood(port: int, count: int, body: bytes) -> list[tuple[int, float]]:
    """`count` clients that connect together, each with one request; (status, seconds from its connection on) of each."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"

    async def client() -> tuple[int, float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        document = json.loads(answer.split(b"\r\n\r\n", 1)[1])
        assert "choices" in document or "queue is full" in document["error"]["message"] or "waiting" in str(document)
        return int(answer.split(b" ", 2)[1]), time.perf_counter() - began

    async def all_of_them() -> list[tuple[int, float]]:
        return await asyncio.gather(*(client() for _ in range(count)))

    return asyncio.run(all_of_them())


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the server's memory from /proc")
def test_ten_thousand_requests_at_once() -> None:
    """10,000 clients while sixteen streams run: as many as the queue takes are served, the others are told without waiting
    for them, the streams finish, and neither memory nor slots are left behind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 10_500:
        pytest.skip(f"a process may open {hard} files here, and every client is one")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 10_500), hard))
    try:
        with serving("--model", "tiny-gdn", "--decode-rows", "1,4,16", "--contexts", "1024") as up:
            streams = [up.ask(asks(f"stream {i}", 900, stream=True)) for i in range(16)]
            before = up.memory_bytes()
            clients = flood(up.port, 10_000, json.dumps(asks("abc", 2)).encode())
            for stream in streams:
                streamed_text(stream.rest())
            metrics = up.wait_idle()
            served = [seconds for status, seconds in clients if status == 200]
            refused = [seconds for status, seconds in clients if status == 429]
            assert len(served) + len(refused) == 10_000
            assert len(served) >= 1024, "the queue's places are used"
            assert len(refused) > 5000
            assert statistics.median(refused) < statistics.median(served)
            assert metrics['requests_total{finish="length"}'] == 16 + len(served)
            assert metrics['refused_total{status="429"}'] == len(refused)
            assert up.memory_bytes() - before < 400 << 20, (
                "under 40 kB a client, and more of them need no more: 100 to 230 MB were measured"
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_full_queue_answers_at_once() -> None:
    """While the queue is full a request is refused without waiting for a step, its body unread."""
    config = EngineConfig(pages=300, decode_rows=(1,), prefill_sizes=(16,), contexts=(1024,), queue_limit=2)
    served = open_engine("tiny-gdn", config)
    kernels = served.engine.runner.decoder.kernels  # type: ignore[attr-defined]
    good, may_go_on = kernels.attention_decode, threading.Event()

    def slow(*arguments: Any) -> Any:
        may_go_on.wait(30)
        return good(*arguments)

    with running(served) as up:
        kernels.attention_decode = slow
        with ThreadPoolExecutor(3) as pool:
            answers = [pool.submit(httpx.post, up.url + "/v1/completions", json=asks("abc", 4), timeout=60)]
            until = time.monotonic() + 20
            while not served.engine.scheduler.running:
                assert time.monotonic() < until
                time.sleep(0.01)
            for _ in range(2):
                answers.append(pool.submit(httpx.post, up.url + "/v1/completions", json=asks("abc", 4), timeout=60))
            while not served.engine.is_full:
                assert time.monotonic() < until
                time.sleep(0.01)
            began = time.monotonic()
            refused = httpx.post(f"{up.url}/v1/completions", content=b"x" * (30 << 20), timeout=20)
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert time.monotonic() - began < 10, "the step that hangs is not waited for"
            may_go_on.set()
            assert [answer.result().status_code for answer in answers] == [200] * 3
        up.wait_idle()


@pytest.mark.slow
def test_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """SIGKILL while a long prompt is computed: its clients see a broken connection, never a short answer that looks whole;
    the next start, with the same folder for its log, gives the same answers."""
    options = ("--model", "tiny-gdn", "--log", str(tmp_path / "log"))
    with serving(*options) as first:
        wanted = first.ask(asks("the same", 20)).json()["choices"][0]["text"]
        stream = first.ask(asks("abc", 7000, stream=True))
        stream.begin()
        waiting = http.client.HTTPConnection("127.0.0.1", first.port, timeout=60)
        waiting.request("POST", "/v1/completions", json.dumps(asks("x" * 8000, 16)))
        until = time.monotonic() + 30
        while first.metrics()["running"] < 2:
            assert time.monotonic() < until
        first.child.send_signal(signal.SIGKILL)
        with pytest.raises((http.client.HTTPException, OSError)):
            stream.rest()
        with pytest.raises((http.client.HTTPException, OSError)):
            waiting.getresponse()
        assert first.child.wait(20) == -signal.SIGKILL
    with serving(*options, port=first.port) as second:
        assert second.ask(asks("the same", 20)).json()["choices"][0]["text"] == wanted
        second.wait_idle()
        second.child.send_signal(signal.SIGTERM)
        assert second.child.wait(40) == 0
    assert (tmp_path / "log" / "steps.parquet").is_file()


@pytest.mark.slow
def test_stopped_politely() -> None:
    """SIGTERM while some stream and some still wait for a lane: all of them get their whole answer, nobody new is let in."""
    with serving("--model", "tiny-gdn", "--decode-rows", "1,2", "--contexts", "1024") as up:
        wanted = up.ask(asks("abc", 150)).json()["choices"][0]["text"]
        answers = together(2, lambda number: up.ask(asks("abc", 150, stream=True)))
        for answer in answers:
            answer.begin()
        answers += [up.ask(asks("abc", 150, stream=True)) for _ in range(3)]
        up.child.send_signal(signal.SIGTERM)
        texts = together(5, lambda number: answers[number].rest())
        assert up.child.wait(40) == 0, up.child.communicate()[1]
        for text in texts[2:]:
            assert streamed_text(text) == wanted
        for text in texts[:2]:
            assert text.endswith(b"data: [DONE]\n\n")
        with pytest.raises(OSError):
            up.ask(asks("abc", 1))


def test_clients_that_leave_before_they_are_heard() -> None:
    """A step hangs meanwhile: requests of clients that hung up before the engine knew of them are not computed either."""
    served = open_engine("tiny-gdn", CONFIG)
    kernels = served.engine.runner.decoder.kernels  # type: ignore[attr-defined]
    good, may_go_on = kernels.attention_decode, threading.Event()

    def slow(*arguments: Any) -> Any:
        may_go_on.wait(30)
        return good(*arguments)

    with running(served) as up:
        kernels.attention_decode = slow
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(httpx.post, up.url + "/v1/completions", json=asks("abc", 4), timeout=60)
            while not served.engine.scheduler.running:
                time.sleep(0.01)
            for stream in (True, False):
                with pytest.raises(httpx.ReadTimeout):
                    httpx.post(up.url + "/v1/completions", json=asks("abc", 900, stream=stream), timeout=0.5)
            may_go_on.set()
            assert answer.result().status_code == 200
        up.wait_idle()
        assert served.engine.scheduler.steps < 100, "1,800 tokens were asked for"


CONFIG = EngineConfig(pages=300, decode_rows=(1, 4), prefill_sizes=(16, 64, 256), contexts=(256, 1024))


@pytest.mark.parametrize("kernel", ["attention_prefill", "delta_rule_prefill"])
def test_a_kernel_that_raises_while_others_run(kernel: str) -> None:
    """A prompt's step raises while another request decodes: the first is a 500 with the reason, the other's answer is what
    it is without the fault, and so is the answer to the same prompt once the kernel is well."""
    served = open_engine("tiny-gdn", CONFIG)
    kernels = served.engine.runner.decoder.kernels  # type: ignore[attr-defined]
    good = getattr(kernels, kernel)

    def bad(*arguments: Any) -> Any:
        raise RuntimeError("unexpected hardware response")

    with running(served) as up, httpx.Client(base_url=up.url, timeout=60) as client:

        def answer(body: dict[str, Any]) -> Any:
            return client.post("/v1/completions", json=body)

        alone = answer(asks("the one that runs", 300)).json()["choices"][0]["text"]
        wanted = answer(asks("the unlucky one", 5)).json()["choices"][0]["text"]
        with client.stream("POST", "/v1/completions", json=asks("the one that runs", 300, stream=True)) as stream:
            pieces = stream.iter_bytes()
            body = next(pieces)
            setattr(kernels, kernel, bad)
            failed = together(3, lambda number: answer(asks(f"the unlucky one {number}", 5)))
            setattr(kernels, kernel, good)
            for one in failed:
                assert one.status_code == 500
                assert "unexpected hardware response" in one.json()["error"]["message"]
            assert answer(asks("the unlucky one", 5)).json()["choices"][0]["text"] == wanted
            for piece in pieces:
                body += piece
        assert streamed_text(body) == alone
        up.wait_idle()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_inconsistency_of_our_own_stops_the_engine_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be trusted any more: running requests are told, later ones get 503, /health and /metrics answer."""
    served = open_engine("tiny-gdn", CONFIG)

    def plan() -> None:
        raise InconsistencyError("page 7 was freed twice")

    with running(served) as up, httpx.Client(base_url=up.url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json=asks("abc", 900, stream=True)) as stream:
            pieces = stream.iter_bytes()
            next(pieces)
            monkeypatch.setattr(served.engine.scheduler, "plan", plan)
            assert b"page 7 was freed twice" in b"".join(pieces)
        later = client.post("/v1/completions", json=asks("abc", 1))
        assert later.status_code == 503 and "restart" in later.json()["error"]["message"]
        health = client.get("/health")
        assert health.status_code == 503 and "page 7" in health.json()["why"]
        assert client.get("/metrics").status_code == 200
