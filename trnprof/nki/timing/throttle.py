"""The tensor engine's dI/dt limit: half rate until it was busy enough for a whole window, and again after one in which
it was not."""

from __future__ import annotations

from trnprof.hardware.instruction_costs import Case, InstructionCosts

PE_ROWS = 128


class Throttle:
    """One tensor engine's rate over time. Times are picoseconds; calls come in order of time.

    A window's rate follows from the work in the window before: full after at least `threshold` of what full rate could do,
    else limited. The windows run on the chip's clock, so where in one the kernel begins is a matter of chance: low begins
    with one, mid in the middle, high just before its end.
    """

    def __init__(self, costs: InstructionCosts, case: Case) -> None:
        self.window_ps = round(costs["throttle.window_cycles"].at(case) * 1e12 / costs.base_clock_hz)
        self.needed_ps = costs["throttle.threshold"].at(case) * self.window_ps
        self.limited_rate = costs["throttle.limited_rate"].at(case)
        self.counts_depth = costs["throttle.counts_depth"].at(case) > 0
        self.phase_ps = round(costs["throttle.phase"].at(case) * self.window_ps)
        self._window = 0
        self._is_full = self.limited_rate >= 1
        self._done_ps = 0.0
        """Full-rate work in the current window."""
        self.levels: list[tuple[int, bool]] = [(0, self._is_full)]
        """(from when, is it full rate?), each change once."""

    def run(self, start_ps: int, work_ps: int, rows: int = PE_ROWS) -> int:
        """When work of `work_ps` at full rate, begun at `start_ps`, ends. rows: how many of the array's rows it uses."""
        weight = min(rows / PE_ROWS, 1.0) if self.counts_depth else 1.0
        if self.limited_rate >= 1:
            return start_ps + work_ps
        at, left = start_ps, float(work_ps)
        while left > 0.5:
            self._enter((at + self.phase_ps) // self.window_ps)
            end = (self._window + 1) * self.window_ps - self.phase_ps
            rate = 1.0 if self._is_full else self.limited_rate
            possible = (end - at) * rate
            if left <= possible:
                self._done_ps += weight * left
                return at + round(left / rate)
            self._done_ps += weight * possible
            left -= possible
            at = end
        return at

    def _enter(self, window: int) -> None:
        """The rate of `window`: of the one before, and half rate where idle windows lie between."""
        if window <= self._window:
            return
        is_full = window == self._window + 1 and self._done_ps >= self.needed_ps
        if self._window + 1 < window and self._is_full != (self._done_ps >= self.needed_ps):
            # The window after the last busy one had a rate of its own.
            self._change(self._window + 1, self._done_ps >= self.needed_ps)
        self._window, self._done_ps = window, 0.0
        self._change(window, is_full)

    def _change(self, window: int, is_full: bool) -> None:
        if is_full != self._is_full:
            self._is_full = is_full
            self.levels.append((max(window * self.window_ps - self.phase_ps, 0), is_full))

    def finish(self, end_ps: int) -> list[tuple[int, bool]]:
        """All changes up to `end_ps`, idle windows at the end included."""
        if self.limited_rate < 1:
            self._enter((end_ps + self.phase_ps) // self.window_ps)
        return [level for level in self.levels if level[0] < max(end_ps, 1)]
