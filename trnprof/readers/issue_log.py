"""What a reader found wrong with a capture, gathered while it reads and reported once per code."""

from __future__ import annotations

from trnprof.profile import CaptureIssue

_MAX_DETAILS = 8
"""More different details than this under one code are counted, not spelled out."""


class IssueLog:
    """Counts by code and detail, in the order in which they were first met."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, int]] = {}

    def add(self, code: str, count: int, detail: str) -> None:
        """Note `count` cases of `code`; nothing where count is 0."""
        if count:
            details = self._found.setdefault(code, {})
            details[detail] = details.get(detail, 0) + count

    def include(self, other: IssueLog) -> None:
        """Note everything that another log has, after what this one has."""
        for code, details in other._found.items():
            for detail, count in details.items():
                self.add(code, count, detail)

    def issues(self) -> tuple[CaptureIssue, ...]:
        """One issue per code, codes ascending: the total count, and each detail with its own count."""
        issues = []
        for code, details in sorted(self._found.items()):
            # Sorted, so that the order in which a capture's rows were looked at never shows.
            texts = [f"{detail} ({count:,})" for detail, count in sorted(details.items())[:_MAX_DETAILS]]
            if len(details) > _MAX_DETAILS:
                texts.append(f"and {len(details) - _MAX_DETAILS} more kinds")
            issues.append(CaptureIssue(code, sum(details.values()), "; ".join(texts)))
        return tuple(issues)
