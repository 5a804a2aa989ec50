"""The same work for many captures, in processes side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from trnprof.errors import InputDataError

T = TypeVar("T")
R = TypeVar("R")


def processor_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(work: Callable[[T], R], items: Sequence[T], *, jobs: int) -> Iterator[tuple[int, R]]:
    """(place, work(item)) of every item, as they are done; in this process where jobs is 1.

    work: a module's function (each process imports it); what it raises is raised here.

    Raises: InputDataError if a process is killed, as a system does that is out of memory.
    """
    jobs = min(jobs, len(items))
    if jobs <= 1:
        for place, item in enumerate(items):
            yield place, work(item)
        return
    # Fresh processes: a fork would copy the threads' locks that numpy and pyarrow hold.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_take_one_processor)
    try:
        running: dict[Future[R], int] = {}
        left = iter(enumerate(items))
        while True:
            # No more than one item waits for each process, so that stopping early leaves little undone.
            while len(running) < 2 * jobs and (following := next(left, None)) is not None:
                running[pool.submit(work, following[1])] = following[0]
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=running.__getitem__):
                yield running.pop(future), future.result()
    except BrokenProcessPool:
        raise InputDataError(
            f"one of {jobs} processes was killed, as a system does that is out of memory; try fewer: --jobs 1"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _take_one_processor() -> None:
    """The processes share the processors: none takes all of them for itself."""
    import pyarrow as pa

    from trnprof.lean_start import leave_pandas_out, share_one_heap

    leave_pandas_out()
    share_one_heap()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
