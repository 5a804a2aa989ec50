"""The byte-level tokenizer that ships with the package: a token a byte, and four special ones. Nothing is downloaded."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import ClassVar


class ByteTokenizer:
    """Token i is the byte i for i < 256; then end of text, turn start, turn end and padding."""

    EOS: ClassVar[int] = 256
    TURN_START: ClassVar[int] = 257
    TURN_END: ClassVar[int] = 258
    PAD: ClassVar[int] = 259
    VOCAB: ClassVar[int] = 260

    def encode(self, text: str) -> list[int]:
        """UTF-8 bytes of `text`; lone surrogates (which JSON can carry) become the replacement character."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the byte tokens; special tokens say nothing."""
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """(role, text) turns, each between turn marks, then the start of the assistant's turn.

        Appending a turn to a conversation only appends tokens, so that its prefix is found in the cache.
        """
        tokens: list[int] = []
        for role, text in messages:
            tokens += [self.TURN_START, *self.encode(f"{role}\n{text}"), self.TURN_END]
        return [*tokens, self.TURN_START, *self.encode("assistant\n")]

    def stream(self) -> TextStream:
        """A decoder for tokens that arrive one by one."""
        return TextStream()

    @classmethod
    def to_json(cls) -> str:
        """The same tokenizer as a Hugging Face tokenizer.json, for clients that count tokens themselves."""
        vocab = {_byte_symbol(byte): byte for byte in range(256)}
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
        added = [
            {
                "id": 256 + i,
                "content": text,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for i, text in enumerate(special)
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return json.dumps(
            {
                "version": "1.0",
                "added_tokens": added,
                "pre_tokenizer": byte_level,
                "decoder": byte_level,
                "model": {"type": "BPE", "vocab": vocab, "merges": []},
            }
        )


class TextStream:
    """Turns tokens into text as they come, never splitting a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return self._decoder.decode(bytes(token for token in tokens if token < 256))

    def finish(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)


def _byte_symbol(byte: int) -> str:
    """The printable character that GPT-2's byte-level vocabulary uses for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    others = [value for value in range(256) if value not in printable]
    return chr(256 + others.index(byte))
