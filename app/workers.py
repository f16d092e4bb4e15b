"""Processes that share a work and end with the one that started them, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

DIED: Final = (
    "a process that verified a part of it ended before it was done (it was killed, or memory ran out); "
    "try again, with fewer --jobs"
)
"""What is said when one of them is gone; its siblings end then, too."""


def worker_pool(
    jobs: int, begin: Callable[..., None] | None = None, *arguments: object
) -> ProcessPoolExecutor:
    """A pool of fresh processes, which share nothing with this one; each calls ``begin`` first."""
    return ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(begin, arguments),
    )


def _begin(begin: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it is told, and ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin is not None:
        begin(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
