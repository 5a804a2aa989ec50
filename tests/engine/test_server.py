"""The server over real sockets: OpenAI's protocol, limits, and what clients and kernels do wrong."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")
httpx = pytest.importorskip("httpx", reason="httpx (extra engine-test) is the client of these tests")
pytest.importorskip("uvicorn", reason="the engine extra is not installed")

from tests.engine.serving import Running, running  # noqa: E402
from trnprof.engine.build import open_engine  # noqa: E402
from trnprof.engine.config import EngineConfig  # noqa: E402
from trnprof.engine.server import check_exposure, is_loopback  # noqa: E402
from trnprof.errors import UsageError  # noqa: E402

CONFIG = EngineConfig(pages=300, decode_rows=(1, 4), prefill_sizes=(16, 64, 256), contexts=(256, 1024), queue_limit=64)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(open_engine("tiny-gdn", CONFIG)) as up:
        yield up


def post(server: Running, path: str, body: Any, **headers: str) -> Any:
    return httpx.post(server.url + path, json=body, headers=headers, timeout=60)


def events(response: Any) -> list[Any]:
    """The data of a streamed answer; the last must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_completion_whole_and_streamed_are_the_same(server: Running) -> None:
    body = {"model": "tiny-gdn", "prompt": "Hello, my name is", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = post(server, "/v1/completions", body).json()
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"] == {
        "prompt_tokens": 17,
        "completion_tokens": 12,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    streamed = post(server, "/v1/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    chunks = events(streamed)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 11 + ["length"]
    assert chunks[-1]["choices"] == []
    # The same prompt again: its one whole page of 16 tokens comes from the cache.
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}


def test_chat(server: Running) -> None:
    body = {
        "model": "tiny-gdn",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]},
        ],
        "max_completion_tokens": 5,
        "max_tokens": 99,
        "ignore_eos": True,
        "seed": 3,
    }
    whole = post(server, "/v1/chat/completions", body).json()
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert whole["usage"]["completion_tokens"] == 5
    # <|im_start|>system\nBe brief.<|im_end|> is 2 + 16, user 2 + 11, the assistant's start 1 + 10.
    assert whole["usage"]["prompt_tokens"] == 18 + 13 + 11
    chunks = events(post(server, "/v1/chat/completions", body | {"stream": True}))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == whole["choices"][0]["message"]["content"]


def test_token_prompts_stop_texts_and_min_tokens(server: Running) -> None:
    body = {"prompt": [72, 101, 108, 108, 111], "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    text = post(server, "/v1/completions", body).json()["choices"][0]["text"]
    assert text == post(server, "/v1/completions", body | {"prompt": "Hello"}).json()["choices"][0]["text"]
    stop = text[5:8]
    cut = post(server, "/v1/completions", body | {"stop": [stop, "never there"]}).json()["choices"][0]
    assert cut["text"] == text[: text.index(stop)] and cut["finish_reason"] == "stop"
    streamed = events(post(server, "/v1/completions", body | {"stop": stop, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text[: text.index(stop)]
    server.wait_idle()


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/completions", "{", "not JSON"),
        ("/v1/completions", "[" * 100_000, "not JSON"),
        ("/v1/completions", "[]", "JSON object"),
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": ""}, "prompt is empty"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt"),
        ("/v1/completions", {"prompt": [1, 999]}, "vocabulary"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "9"}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": True}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
        ("/v1/completions", {"prompt": "a", "temperature": float("nan")}, "temperature"),
        ("/v1/completions", {"prompt": "a", "top_p": 2}, "top_p"),
        ("/v1/completions", {"prompt": "a", "seed": 1 << 64}, "seed"),
        ("/v1/completions", {"prompt": "a", "stream": "yes"}, "stream"),
        ("/v1/completions", {"prompt": "a", "n": 2}, "n must be 1"),
        ("/v1/completions", {"prompt": "a", "logprobs": 5}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "stop": [""]}, "stop"),
        ("/v1/completions", {"prompt": "x" * 1020, "max_tokens": 16}, "context of 1024"),
        ("/v1/completions", {"prompt": "x" * 1_000_000}, "context of 1024"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "a"}]}, "role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "type text"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 7}]}, "content"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(server: Running, path: str, body: Any, named: str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    response = httpx.post(server.url + path, content=content, timeout=60)
    assert response.status_code == 400, response.text
    assert named in response.json()["error"]["message"]


def test_models_health_metrics(server: Running) -> None:
    models = httpx.get(server.url + "/v1/models").json()["data"]
    assert models[0]["id"] == "tiny-gdn" and models[0]["max_model_len"] == 1024
    assert httpx.get(server.url + "/health").json() == {"status": "ok"}
    post(server, "/v1/completions", {"prompt": "abc", "max_tokens": 2, "ignore_eos": True})
    page = httpx.get(server.url + "/metrics").text
    for line in page.splitlines():
        assert line.startswith("#") or (len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0)
    assert 'trnprof_engine_requests_total{finish="length"}' in page
    assert "trnprof_engine_time_to_first_token_seconds_count" in page
    assert httpx.get(server.url + "/nothing").status_code == 404
    assert httpx.get(server.url + "/v1/completions").status_code == 405


def test_clients_that_go_away(server: Running) -> None:
    """Streaming and waiting clients that close their socket: their requests end early, nothing leaks, others go on."""
    before = server.served.engine.scheduler.steps
    for stream in (True, False):
        body = json.dumps({"prompt": "abc", "max_tokens": 900, "ignore_eos": True, "stream": stream})
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("POST", "/v1/completions", body)
        if stream:
            assert connection.getresponse().read(20)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
    server.wait_idle()
    assert server.served.engine.scheduler.steps - before < 1700
    assert post(server, "/v1/completions", {"prompt": "still here", "max_tokens": 2}).status_code == 200


def test_a_full_queue_is_429() -> None:
    with running(
        open_engine("tiny-gdn", EngineConfig(pages=300, decode_rows=(1,), contexts=(1024,), queue_limit=3))
    ) as up:
        statuses: list[int] = []

        def ask() -> None:
            body = {"prompt": "abc", "max_tokens": 150, "ignore_eos": True}
            statuses.append(post(up, "/v1/completions", body).status_code)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(statuses) == {200, 429}
        up.wait_idle()


def test_a_kernel_that_raises() -> None:
    """Requests of the step that raised get a 500 that says so; the server goes on serving."""
    served = open_engine("tiny-gdn", CONFIG)
    kernels = served.engine.runner.decoder.kernels
    good = kernels.attention_prefill
    with running(served) as up:
        body = {"prompt": "abc", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        expected = post(up, "/v1/completions", body).json()["choices"][0]["text"]

        def bad(*arguments: Any) -> Any:
            raise RuntimeError("unexpected hardware response")

        kernels.attention_prefill = bad
        failed = post(up, "/v1/completions", body)
        assert failed.status_code == 500 and "unexpected hardware response" in failed.json()["error"]["message"]
        streamed = post(up, "/v1/completions", body | {"stream": True})
        assert "unexpected hardware response" in events(streamed)[0]["error"]["message"]
        kernels.attention_prefill = good
        assert post(up, "/v1/completions", body).json()["choices"][0]["text"] == expected
        up.wait_idle()


def test_an_api_key() -> None:
    with running(open_engine("tiny-gdn", CONFIG), api_key="secret") as up:
        body = {"prompt": "abc", "max_tokens": 1}
        assert post(up, "/v1/completions", body).status_code == 401
        assert post(up, "/v1/completions", body, Authorization="Bearer wrong").status_code == 401
        assert post(up, "/v1/completions", body, Authorization="Bearer secret").status_code == 200
        assert httpx.get(up.url + "/v1/models").status_code == 401
        assert httpx.get(up.url + "/health").status_code == 200


def test_exposure_needs_a_key() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")
    check_exposure("0.0.0.0", "key")
    with pytest.raises(UsageError, match="name a key"):
        check_exposure("0.0.0.0", None)


def test_shutdown_while_answering() -> None:
    """Stopping the server ends a running stream with a finish reason instead of a torn line, and frees everything."""
    served = open_engine("tiny-gdn", CONFIG)
    with running(served) as up:
        connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=20)
        body = {"prompt": "abc", "max_tokens": 60, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        assert response.read(10)
        up.server.should_exit = True
        rest = response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
    served.engine.scheduler.cache.check_idle()
