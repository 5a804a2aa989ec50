"""A model service on loopback that thinks nothing: it follows a plan of tool calls and reports what came back.

It speaks enough of two public streaming interfaces for real coding agents to work against it: Messages (POST /v1/messages)
and Responses (POST /v1/responses). A plan is a function from the conversation so far to the next step, so nothing is kept
between requests, and side requests (titles, token counts) get a plain answer.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Call:
    """The model asks for a tool."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Say:
    """The model answers and is done."""

    text: str


@dataclass
class Conversation:
    """What a request holds, in either interface's words."""

    tools: dict[str, dict[str, Any]]
    """Definition by name."""
    prompt: str
    """Everything the agent says before any tool ran: system prompt, reminders, the user's words."""
    results: list[str]
    """What the tools returned, in order."""


Plan = Callable[[Conversation], Call | Say]


@dataclass
class FakeApi:
    """A running service."""

    url: str
    conversations: list[Conversation] = field(default_factory=list)
    """One a request that had tools."""
    failures: list[str] = field(default_factory=list)


@contextlib.contextmanager
def fake_api(plan: Plan) -> Iterator[FakeApi]:
    """Serve `plan` on a free port of 127.0.0.1 until the block ends."""
    state = FakeApi("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._send(b"", "application/json")

        def do_GET(self) -> None:
            self._send(b'{"data":[],"models":[]}', "application/json")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.split("?")[0]
            try:
                request = json.loads(body)
                if path.endswith("/v1/messages"):
                    events = _messages_events(request, self._next(_messages_conversation(request)))
                    self._answer(events, request)
                elif path.endswith("/v1/responses"):
                    self._send_events(_responses_events(self._next(_responses_conversation(request))))
                else:
                    self._send(b'{"input_tokens":1}', "application/json")
            except Exception as error:  # a fault of the fake must fail the test, not hang the agent
                state.failures.append(f"{path}: {type(error).__name__}: {error}")
                self._send(b"{}", "application/json", 500)

        def _next(self, conversation: Conversation) -> Call | Say:
            if not conversation.tools:
                return Say("ok")
            state.conversations.append(conversation)
            return plan(conversation)

        def _answer(self, events: list[tuple[str, dict[str, Any]]], request: dict[str, Any]) -> None:
            if request.get("stream"):
                self._send_events(events)
                return
            message = dict(events[0][1]["message"])
            step = events[-1][1]
            message |= {"content": step["content"], "stop_reason": step["stop_reason"]}
            self._send(json.dumps(message).encode(), "application/json")

        def _send_events(self, events: list[tuple[str, dict[str, Any]]]) -> None:
            text = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events if name != "whole")
            self._send(text.encode(), "text/event-stream")

        def _send(self, content: bytes, kind: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


# --- Messages ---------------------------------------------------------------------------------------------------------


def _texts(content: Any) -> list[str]:
    """Every text in a message's content, tool results apart."""
    if isinstance(content, str):
        return [content]
    texts = []
    for block in content or []:
        if block.get("type") in ("text", "input_text", "output_text"):
            texts.append(block["text"])
    return texts


def _messages_conversation(request: dict[str, Any]) -> Conversation:
    prompt, results = _texts(request.get("system")), []
    for message in request.get("messages", ()):
        content = message["content"]
        if message["role"] == "user":
            for block in content if isinstance(content, list) else ():
                if block.get("type") == "tool_result":
                    results.append("\n".join(_texts(block.get("content"))))
        prompt += _texts(content)
    tools = {tool["name"]: tool for tool in request.get("tools") or ()}
    return Conversation(tools, "\n".join(prompt), results)


def _messages_events(request: dict[str, Any], step: Call | Say) -> list[tuple[str, dict[str, Any]]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "fake"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    if isinstance(step, Say):
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": step.text}
        whole, reason = {"type": "text", "text": step.text}, "end_turn"
    else:
        number = len(_messages_conversation(request).results)
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": step.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}
        whole, reason = block | {"input": step.arguments}, "tool_use"
    ending = {"stop_reason": reason, "stop_sequence": None}
    return [
        ("message_start", {"type": "message_start", "message": message}),
        ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}),
        ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        ("message_delta", {"type": "message_delta", "delta": ending, "usage": usage}),
        ("message_stop", {"type": "message_stop"}),
        ("whole", {"content": [whole], "stop_reason": reason}),
    ]


# --- Responses --------------------------------------------------------------------------------------------------------


def _responses_conversation(request: dict[str, Any]) -> Conversation:
    prompt, results = [request.get("instructions") or ""], []
    for item in request.get("input", ()):
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            output = item["output"]
            results.append(output if isinstance(output, str) else "\n".join(_texts(output)))
        elif item.get("type") == "message":
            prompt += _texts(item["content"])
    tools = {tool.get("name", tool["type"]): tool for tool in request.get("tools") or ()}
    return Conversation(tools, "\n".join(prompt), results)


def _responses_events(step: Call | Say) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(step, Say):
        content = [{"type": "output_text", "text": step.text, "annotations": []}]
        item: dict[str, Any] = {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    else:
        item = {
            "type": "function_call",
            "id": "f1",
            "call_id": f"call_{abs(hash(json.dumps(step.arguments))) % 10**8}",
            "name": step.tool,
            "arguments": json.dumps(step.arguments),
        }
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": usage}
    return [
        ("response.created", {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}),
        ("response.output_item.added", {"type": "response.output_item.added", "output_index": 0, "item": item}),
        ("response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item}),
        ("response.completed", {"type": "response.completed", "response": response}),
    ]
