"""Making the next item while the last one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in a thread of its own while the caller works on the one before.

    At most one finished item waits, so that memory is that of three. What making an item raises is raised here. A caller
    that stops early stops the thread.
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def make() -> None:
        try:
            for item in items:
                if not _put((item, None)):
                    return
            _put((None, StopIteration()))
        except BaseException as error:
            _put((None, error))

    def _put(entry: tuple[T | None, BaseException | None]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    thread = threading.Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
