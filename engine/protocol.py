"""OpenAI's requests and answers as plain data: what a JSON body asks for, and what is sent back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trnprof.engine.request import Sampling
from trnprof.engine.tokenizer import ByteTokenizer

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024


class BadRequest(Exception):
    """The client's mistake; the message goes into the answer."""

    def __init__(self, message: str, *, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.field, self.status = message, field, status


@dataclass(frozen=True)
class Asked:
    """One completion or chat request."""

    chat: bool
    model: str
    prompt: list[int]
    max_tokens: int | None
    """None: as many as the context has room for."""
    temperature: float
    top_p: float
    seed: int | None
    ignore_eos: bool
    min_tokens: int
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool

    def sampling(self, *, room: int, seed: int) -> Sampling:
        """What the engine is asked; `room` tokens are left in the context, `seed` is used where the client gave none."""
        return Sampling(
            max_tokens=self.max_tokens if self.max_tokens is not None else max(room, 1),
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed if self.seed is not None else seed,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
        )


def parse_request(body: bytes, tokenizer: ByteTokenizer, *, chat: bool) -> Asked:
    """What a request body asks for. Fields that this server does not know are ignored, as OpenAI's clients expect.

    Raises: BadRequest naming the field for everything that cannot be served.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    fields = _Fields(document)
    for name in ("logprobs", "top_logprobs", "echo", "suffix", "tools", "functions", "response_format", "logit_bias"):
        if document.get(name):
            raise BadRequest(f"{name} is not served", field=name)
    for name in ("n", "best_of"):
        if document.get(name) not in (None, 1):
            raise BadRequest(f"{name} must be 1", field=name)
    max_tokens = fields.integer("max_completion_tokens", None, low=1)
    if max_tokens is None:
        max_tokens = fields.integer("max_tokens", None if chat else 16, low=1)
    options = document.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", field="stream_options")
    return Asked(
        chat=chat,
        model=fields.text("model", ""),
        prompt=_messages(document, tokenizer) if chat else _prompt(document, tokenizer),
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 1.0, low=0.0, high=100.0),
        top_p=fields.number("top_p", 1.0, low=0.0, high=1.0),
        seed=fields.integer("seed", None, low=-(1 << 63), high=(1 << 63) - 1),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=fields.integer("min_tokens", 0, low=0) or 0,
        stops=_stops(document.get("stop")),
        stream=fields.flag("stream"),
        include_usage=bool(options and options.get("include_usage")),
    )


class _Fields:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    def integer(self, name: str, default: int | None, *, low: int, high: int = 1 << 31) -> int | None:
        value = self.document.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadRequest(f"{name} must be a whole number of at least {low}, got {_shown(value)}", field=name)
        return value

    def number(self, name: str, default: float, *, low: float, high: float) -> float:
        value = self.document.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadRequest(f"{name} must be a number from {low:g} to {high:g}, got {_shown(value)}", field=name)
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.document.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise BadRequest(f"{name} must be true or false, got {_shown(value)}", field=name)

    def text(self, name: str, default: str) -> str:
        value = self.document.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise BadRequest(f"{name} must be text, got {_shown(value)}", field=name)
        return value


def _prompt(document: Mapping[str, Any], tokenizer: ByteTokenizer) -> list[int]:
    value = document.get("prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return tokenizer.encode(value)
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return list(value)
    raise BadRequest("prompt must be one text or one list of token numbers", field="prompt")


def _messages(document: Mapping[str, Any], tokenizer: ByteTokenizer) -> list[int]:
    value = document.get("messages")
    if not isinstance(value, list) or not value:
        raise BadRequest("messages must be a list with at least one message", field="messages")
    turns = []
    for number, message in enumerate(value):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest(f"{where} must be an object with a role", field="messages")
        content = message.get("content")
        if content is None:
            content = ""
        if isinstance(content, list):
            parts = []
            for part in content:
                if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                    raise BadRequest(f"{where}.content may hold parts of type text only", field="messages")
                parts.append(part["text"])
            content = "".join(parts)
        if not isinstance(content, str):
            raise BadRequest(f"{where}.content must be text", field="messages")
        turns.append((message["role"], content))
    return tokenizer.encode_chat(turns)


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise BadRequest(f"stop must be a text or a list of at most {MAX_STOPS} texts", field="stop")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise BadRequest(f"a stop text must have 1 to {MAX_STOP_CHARACTERS} characters", field="stop")
    return tuple(stops)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


class StopFinder:
    """Finds stop texts in an answer that arrives in pieces, and holds back what could be the start of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops, self.found = stops, False
        self._held = ""
        self._hold = max((len(stop) for stop in stops), default=1) - 1

    def push(self, text: str, *, last: bool = False) -> str:
        """The text that may be sent now; `found` is set once a stop text was seen, and nothing is sent from it on."""
        if self.found or not self.stops:
            return "" if self.found else text
        self._held += text
        hits = [at for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if hits:
            self.found = True
            return self._held[: min(hits)]
        if last:
            ready, self._held = self._held, ""
            return ready
        # Only a tail that begins some stop text is held back.
        for size in range(min(self._hold, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self.stops):
                ready, self._held = self._held[:-size], self._held[-size:]
                return ready
        ready, self._held = self._held, ""
        return ready


@dataclass(frozen=True)
class Envelope:
    """What all chunks of one answer have in common."""

    id: str
    model: str
    created: int
    chat: bool

    def chunk(self, text: str, finish: str | None, *, first: bool) -> dict[str, Any]:
        """One streamed piece."""
        if self.chat:
            delta: dict[str, str] = {"content": text}
            if first:
                delta = {"role": "assistant"} | delta
            choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        else:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._wrap(kind, [choice])

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last streamed piece, where the client asked for usage."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._wrap(kind, []) | {"usage": usage}

    def whole(self, text: str, finish: str, usage: dict[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""
        if self.chat:
            message = {"role": "assistant", "content": text}
            choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
            return self._wrap("chat.completion", [choice]) | {"usage": usage}
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        return self._wrap("text_completion", [choice]) | {"usage": usage}

    def _wrap(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def usage(prompt_tokens: int, answer_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """OpenAI's usage object; cached_tokens is always there, 0 with the cache off."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answer_tokens,
        "total_tokens": prompt_tokens + answer_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def error_body(message: str, *, kind: str, field: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": field, "code": None}}
