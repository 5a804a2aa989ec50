"""The engine: requests in, tokens out, the next step planned while this one runs."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter_ns

from trnprof.engine.plan import Runner, StepPlan, StepResult
from trnprof.engine.request import FinishReason, Request
from trnprof.engine.scheduler import Scheduler, Update
from trnprof.engine.step_log import StepLog

Listener = Callable[[Update], None]
"""Called in the engine's thread with news of one request; must not block."""


class StoppedError(RuntimeError):
    """The engine's thread has ended: nothing is served any more."""


@dataclass(frozen=True)
class _InFlight:
    plan: StepPlan
    result: Future[StepResult]


class Engine:
    """Owns the scheduler; used directly (`step`), or in a thread of its own (`start`, `stop`)."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, *, log: StepLog | None = None, overlap: bool = True
    ) -> None:
        """`overlap` off collects each step before the next is planned; with speculation that is always so, since what a
        verification accepts decides where the next step starts."""
        self.scheduler, self.runner, self.log = scheduler, runner, log
        self.depth = 2 if overlap and not scheduler.draft else 1
        self._listeners: dict[str, Listener] = {}
        self._flying: deque[_InFlight] = deque()
        self._commands: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._wake = threading.Event()
        self._stopping = self._ended = False
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue a request (in the engine's thread; from another one through `call`).

        Raises: UsageError, QueueFullError (see Scheduler.add).
        """
        self._listeners[request.id] = listener
        try:
            self.scheduler.add(request)
        except BaseException:
            del self._listeners[request.id]
            raise

    # From any thread

    def call(self, command: Callable[[], None]) -> Future[None]:
        """Run `command` in the engine's thread before its next step; what it raises is in the future (StoppedError once
        that thread has ended)."""
        future: Future[None] = Future()
        self._commands.append((command, future))
        self._wake.set()
        if self._ended:
            self._refuse_commands()
        return future

    @property
    def is_full(self) -> bool:
        """Would a new request be refused? What arrived while a step runs, and is not queued yet, counts too."""
        waiting = len(self.scheduler.waiting) + len(self._commands)
        return waiting >= self.scheduler.engine.queue_limit and not self._ended

    def abort(self, request_id: str) -> None:
        """End a request (any thread); a request that is not here any more is left alone."""

        def command() -> None:
            update = self.scheduler.abort(request_id)
            if update is not None:
                self._tell(update)

        self.call(command)

    # The loop

    def step(self) -> bool:
        """Plan and start one step if one can run, then collect the oldest; False if there was nothing to do."""
        while self._commands:
            command, future = self._commands.popleft()
            if not future.set_running_or_notify_cancel():
                continue  # whoever asked went away
            try:
                command()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)
        plan = self.scheduler.plan() if len(self._flying) < self.depth else None
        if plan is not None:
            self._flying.append(_InFlight(plan, self.runner.submit(plan)))
        if self._flying and (plan is None or len(self._flying) >= self.depth):
            self._collect(self._flying.popleft())
            return True
        return plan is not None

    def run_until_idle(self) -> None:
        """Step until every request has ended (for tests and benchmarks)."""
        while self.step() or not self.scheduler.is_idle:
            pass

    def _collect(self, flying: _InFlight) -> None:
        try:
            result = flying.result.result()
        except Exception as error:
            # A kernel raised: its requests end, the others go on.
            message = f"step {flying.plan.number} ({flying.plan.shape.name}) failed: {type(error).__name__}: {error}"
            for update in self.scheduler.fail(flying.plan, message):
                self._tell(update)
            return
        began = perf_counter_ns()
        updates = self.scheduler.collect(flying.plan, result)
        if self.log is not None:
            self.log.add_step(flying.plan, result, self.scheduler, collected=(began, perf_counter_ns()))
        for update in updates:
            self._tell(update)

    def _tell(self, update: Update) -> None:
        listener = self._listeners.get(update.request.id)
        if update.finished:
            self._listeners.pop(update.request.id, None)
            if self.log is not None:
                self.log.add_request(update.request)
        if listener is not None:
            listener(update)

    # A thread of its own

    def start(self) -> None:
        """Run the loop in a thread until `stop`."""
        self._thread = threading.Thread(target=self._forever, name="trnprof-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the step in flight, end every request and stop the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self.runner.close()

    def _forever(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                if not self.step() and not self._commands and not self._stopping:
                    self._wake.wait()
            while self._flying:
                self._collect(self._flying.popleft())
            for request_id in list(self.scheduler.requests):
                update = self.scheduler.abort(request_id)
                if update is not None:
                    self._tell(update)
        except BaseException as error:
            # Our own inconsistency: nothing can be trusted any more, so everybody is told, and /health says so.
            self.failure = error
            for request in list(self.scheduler.requests.values()):
                request.finish_reason, request.error = FinishReason.ERROR, f"the engine stopped: {error}"
                self._tell(Update(request, [], True))
            raise
        finally:
            self._ended = True
            self._refuse_commands()

    def _refuse_commands(self) -> None:
        """Nobody waits for an answer that cannot come. Called by the thread at its end, by others only after that."""
        with contextlib.suppress(IndexError):  # another caller may be emptying it too
            while True:
                _, future = self._commands.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_exception(StoppedError("the engine has stopped; restart the server"))
