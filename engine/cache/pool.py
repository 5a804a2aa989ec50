"""Numbered things (pages, state slots) that are either free or held, with every mistake caught."""

from __future__ import annotations

from trnprof.errors import InconsistencyError


class IdPool:
    """Ids first..first + count - 1; allocate and release cost O(1) each."""

    def __init__(self, name: str, first: int, count: int) -> None:
        self.name, self.count = name, count
        self._free = list(range(first + count - 1, first - 1, -1))
        self._held = bytearray(first + count)

    @property
    def free_count(self) -> int:
        """Ids that can be had at once."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` ids, or None (and nothing taken) if there are not that many."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for number in taken:
            self._held[number] = 1
        return taken

    def release(self, numbers: list[int]) -> None:
        """Give ids back.

        Raises: InconsistencyError for one that is not held (freed twice).
        """
        for number in numbers:
            if not self._held[number]:
                raise InconsistencyError(f"{self.name} {number} was freed twice")
            self._held[number] = 0
            self._free.append(number)

    def free_ids(self) -> list[int]:
        """The free ids (for tests that poison them)."""
        return list(self._free)
