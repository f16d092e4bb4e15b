"""An audit shared by workers that are threads of this process, to compare with one that is not shared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from app.audit import jobs as audit_jobs
from app.audit import rows as audit_rows
from app.verification import chunks, files


class Threads(ThreadPoolExecutor):
    """In the place of processes: one thread, which does what a worker's process does."""

    def __init__(self, jobs: int, _begin: object, *shared: Any) -> None:
        super().__init__(min(jobs, 1))
        self._worker = audit_jobs._worker = audit_jobs._Worker(*shared)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the worker's connection as well."""
        if self._worker._connection is not None:
            self.submit(self._worker._runner.run, self._worker._sharing.__aexit__(None, None, None)).result()
        self.submit(self._worker._runner.close).result()
        super().shutdown(wait, cancel_futures=cancel_futures)


def dying(*_: object) -> None:
    """In the place of what a worker is given to do: its process ends."""
    os._exit(1)


@contextmanager
def shared_work(rows: int = 3, workers: object = Threads) -> Iterator[None]:
    """Audits give every piece of so many rows to a worker, from the first one on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_rows, "CHUNK_ROWS", rows)
        patch.setattr(audit_jobs, "ROWS_ALONE", 0)
        patch.setattr(audit_jobs, "worker_pool", workers)
        yield


@contextmanager
def shared_files(size: int = 1_000) -> Iterator[None]:
    """Files are given to a worker in chunks of so many bytes, however short they are."""

    def threads(_jobs: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "LONG_BYTES", 0)
        patch.setattr(files, "worker_pool", threads)
        patch.setattr(chunks, "CHUNK_BYTES", size)
        yield
