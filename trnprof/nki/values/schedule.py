"""Programs that run together: one at a time, in order, and another one only where the running one waits.

The order is always the same: the first program that can go on does. So a run gives the same values each time, and a pair
that waits for each other for ever is seen at once instead of hanging.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trnprof.nki import recorder as recording_of
from trnprof.nki.recording import Site

STACK_BYTES = 64 << 20
"""Of a program's thread: kernels call through many layers."""


class DeadlockError(RuntimeError):
    """Programs wait for each other and none can go on."""

    reason = "deadlock"


class _Abandoned(BaseException):
    """Ends a program because another one failed."""


@dataclass
class Program:
    """One program of a run."""

    label: str
    """program 0, rank 1 program 0, ..."""
    body: Callable[[], Any]
    outcome: Any = None
    failure: BaseException | None = None
    is_done: bool = False
    waits_for: Callable[[], bool] | None = None
    waiting_text: str = ""
    """What it waits for, and the line."""
    thread: threading.Thread | None = None
    go_on: threading.Event = field(default_factory=threading.Event)
    recorders: list[Any] = field(default_factory=list)
    """Its open recordings while it does not run."""


class Schedule:
    """Runs programs to their ends."""

    def __init__(self) -> None:
        self._programs: list[Program] = []
        self._running: Program | None = None
        self._handed_back = threading.Event()
        self._abandoned = False

    def run(self, programs: list[Program]) -> None:
        """Run all of them; their outcomes are in the programs.

        Raises: the first failure of a program; DeadlockError at the line of a program that waits for ever.
        """
        outer = (self._programs, self._running)
        self._programs = programs
        try:
            if len(programs) == 1:
                self._running = programs[0]
                programs[0].outcome = programs[0].body()
                return
            self._run_in_turns(programs)
        finally:
            self._programs, self._running = outer

    def _run_in_turns(self, programs: list[Program]) -> None:
        try:
            while True:
                failed = next((program for program in programs if program.failure is not None), None)
                if failed is not None:
                    assert failed.failure is not None
                    raise failed.failure
                waiting = [program for program in programs if not program.is_done]
                if not waiting:
                    return
                ready = next((program for program in waiting if program.waits_for is None or program.waits_for()), None)
                if ready is None:
                    stuck = waiting[0]
                    stuck.failure = DeadlockError(self._explain(programs))
                    self._resume(stuck)
                    continue
                ready.waits_for = None
                self._resume(ready)
        finally:
            self._abandoned = True
            for program in programs:
                if program.thread is not None and not program.is_done:
                    self._resume(program)
            self._abandoned = False

    def _resume(self, program: Program) -> None:
        """Let one program run until it waits or ends."""
        before = list(recording_of._current)
        recording_of._current[:] = program.recorders
        self._handed_back.clear()
        self._running = program
        if program.thread is None:
            context = contextvars.copy_context()
            size = threading.stack_size(STACK_BYTES)
            try:
                program.thread = threading.Thread(target=context.run, args=(self._thread, program), daemon=True)
                program.thread.start()
            finally:
                threading.stack_size(size)
        else:
            program.go_on.set()
        self._handed_back.wait()
        program.recorders = list(recording_of._current)
        recording_of._current[:] = before
        self._running = None

    def _thread(self, program: Program) -> None:
        try:
            if not self._abandoned:
                program.outcome = program.body()
        except _Abandoned:
            pass
        except BaseException as error:
            program.failure = error
        finally:
            program.is_done = True
            self._handed_back.set()

    def wait(self, ready: Callable[[], bool], what: str, site: Site) -> None:
        """Called by the running program: go on once `ready`.

        Raises: DeadlockError if that can never be.
        """
        if ready():
            return
        program = self._running
        assert program is not None
        program.waiting_text = f"{what} at {site}"
        if program.thread is None:
            raise DeadlockError(f"{what}: nothing else runs that it could wait for")
        program.waits_for = ready
        program.go_on.clear()
        self._handed_back.set()
        program.go_on.wait()
        if self._abandoned:
            raise _Abandoned
        if program.failure is not None:
            failure, program.failure = program.failure, None
            raise failure

    @staticmethod
    def _explain(programs: list[Program]) -> str:
        parts = []
        for program in programs[:8]:
            if program.is_done:
                parts.append(f"{program.label} has ended")
            else:
                parts.append(f"{program.label} waits for {program.waiting_text}")
        return (
            f"the programs wait for each other for ever: {'; '.join(parts)}. Every program must reach the same barriers, "
            "exchanges and collectives in the same order"
        )
