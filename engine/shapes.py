"""The closed list of shapes that steps are compiled for. A shape outside it is an error, never a live compilation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trnprof.engine.config import EngineConfig, ModelConfig
from trnprof.errors import InconsistencyError, UsageError


class StepKind(StrEnum):
    """What a step does."""

    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"
    """A decode step that checks drafted tokens."""


@dataclass(frozen=True, order=True)
class Shape:
    """One compiled step."""

    kind: StepKind
    rows: int
    width: int
    """Tokens of a row."""
    context: int
    """Tokens of context that the page table of a row covers, the step's own included."""
    sampled: bool
    """With temperature, top-p and forbidden tokens; without, greedy only."""

    @property
    def name(self) -> str:
        """prefill_r2_w256_c2048, decode_r8_w1_c512_sampled."""
        return f"{self.kind}_r{self.rows}_w{self.width}_c{self.context}" + ("_sampled" if self.sampled else "")


class ShapeList:
    """Every shape of an engine, and the smallest that holds a step."""

    def __init__(self, engine: EngineConfig, model: ModelConfig) -> None:
        """Raises: UsageError if no context fits the model or no prefill size fits a context."""
        self.contexts = [context for context in engine.contexts if context <= model.max_context]
        if not self.contexts:
            raise UsageError(
                f"no context of {engine.contexts} is within the model's {model.max_context} tokens; name a smaller one"
            )
        self.prefill_sizes = [size for size in engine.prefill_sizes if size <= self.contexts[-1]]
        if not self.prefill_sizes:
            raise UsageError(f"no prefill size of {engine.prefill_sizes} fits a context of {self.contexts[-1]} tokens")
        self.prefill_rows, self.decode_rows = engine.prefill_rows, engine.decode_rows
        self.budget = max(engine.prefill_budget, self.prefill_sizes[-1])
        self.decode_kind = StepKind.VERIFY if engine.draft_tokens else StepKind.DECODE
        self.decode_width = 1 + engine.draft_tokens
        self._all = frozenset(self._enumerate())

    @property
    def max_context(self) -> int:
        """Tokens that a request may have in all."""
        return self.contexts[-1]

    def _enumerate(self) -> list[Shape]:
        shapes = []
        for context in self.contexts:
            for sampled in (False, True):
                for rows in self.prefill_rows:
                    for size in self.prefill_sizes:
                        if rows * size <= self.budget and size <= context:
                            shapes.append(Shape(StepKind.PREFILL, rows, size, context, sampled))
                for rows in self.decode_rows:
                    shapes.append(Shape(self.decode_kind, rows, self.decode_width, context, sampled))
        return shapes

    def __iter__(self) -> Iterator[Shape]:
        """Shapes in a stable order."""
        return iter(sorted(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, shape: object) -> bool:
        return shape in self._all

    def size_for(self, tokens: int) -> int:
        """The smallest prefill size that holds `tokens`, else the largest there is."""
        return next((size for size in self.prefill_sizes if size >= tokens), self.prefill_sizes[-1])

    def max_rows(self, size: int) -> int:
        """Rows that a prefill step of this size may have."""
        return max(rows for rows in self.prefill_rows if rows == 1 or rows * size <= self.budget)

    def fit(self, kind: StepKind, rows: int, width: int, context: int, *, sampled: bool) -> Shape:
        """The smallest shape that holds a step.

        Raises: InconsistencyError if there is none: the scheduler planned what was never compiled.
        """
        row_sizes = self.prefill_rows if kind is StepKind.PREFILL else self.decode_rows
        held_rows = next((count for count in row_sizes if count >= rows), None)
        held_context = next((size for size in self.contexts if size >= max(context, width)), None)
        if held_rows is not None and held_context is not None:
            shape = Shape(kind, held_rows, width, held_context, sampled)
            if shape in self._all:
                return shape
        raise InconsistencyError(
            f"no compiled shape holds a {kind} of {rows} rows x {width} tokens at {context} tokens of context; "
            "`trnprof engine plan` lists the shapes"
        )
