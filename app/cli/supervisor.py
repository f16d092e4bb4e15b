"""Several server processes: who ends is started again, and none of them for ever when none comes to serve."""

from __future__ import annotations

import logging
import time
from typing import Final

import msgspec
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from app.errors import StartupError

MOST_STARTS: Final = 3
"""Starts in a row that come to nothing in one place before it is given up, if no other process serves."""

FIRST_PAUSE_SECS: Final = 1.0
LONGEST_PAUSE_SECS: Final = 30.0
"""How long a place stays empty after its first start that came to nothing, and at most."""

_log: Final = logging.getLogger("trails.server")


class _Place(msgspec.Struct):
    """One of so many processes, and how its starts went.

    Attributes:
        process: the one that is there, or the last that was.
        serving: whether it came to serve.
        failures: starts in a row that came to nothing.
        next_start: when it is started again, in monotonic seconds; None: it is there.
    """

    process: Process
    serving: bool = False
    failures: int = 0
    next_start: float | None = None


class Supervisor(Multiprocess):
    """Keeps so many server processes alive.

    One that ends after it served is started again at once. One that ends before is started again after a
    pause that grows, for as long as another one serves: a database that is away for a while takes nobody with
    it. When none serves and one place has failed ``MOST_STARTS`` times in a row, all is given up.
    """

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]  # uvicorn's own
        self._places: dict[int, _Place] = {}
        self._gave_up: str | None = None

    def run(self) -> None:
        """Serves until a signal stops it.

        Raises:
            StartupError: no process came to serve.
        """
        super().run()
        if self._gave_up is not None:
            raise StartupError(self._gave_up)

    def keep_subprocess_alive(self) -> None:
        """Looks after each process once; uvicorn calls it twice a second."""
        for number, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            place = self._places.setdefault(number, _Place(process))
            if place.process is not process:  # replaced on SIGHUP
                self._places[number] = place = _Place(process)
            if place.next_start is not None:
                self._start_again(number, place)
            elif not process.is_alive(timeout=self.config.timeout_worker_healthcheck):
                self._ended(place)
            elif not place.serving and process.is_ready(timeout=self.config.timeout_worker_healthcheck):
                place.serving, place.failures = True, 0

    def _ended(self, place: _Place) -> None:
        process, served = place.process, place.serving
        process.kill()  # one that does not answer
        process.join()
        place.serving, place.next_start = False, time.monotonic()
        if served:
            _log.warning("a server process ended and is started again", extra=_fields(process))
            return
        place.failures += 1
        others = sum(self._places[n].serving for n in range(len(self.processes)) if n in self._places)
        if not others and place.failures >= MOST_STARTS:
            self._gave_up = (
                f"no server process comes to serve: {place.failures} in a row ended before they did, "
                f"the last with exit code {process.exitcode}; the log above says why"
            )
            self.should_exit.set()
            return
        pause = min(FIRST_PAUSE_SECS * 2 ** (place.failures - 1), LONGEST_PAUSE_SECS)
        place.next_start += pause
        _log.error(
            "a server process ended before it served and is started again",
            extra=_fields(process, failed_starts=place.failures, others_serving=others, pause_secs=pause),
        )

    def _start_again(self, number: int, place: _Place) -> None:
        if place.next_start is None or time.monotonic() < place.next_start:
            return
        process = Process(self.config, self.sockets)
        process.start()
        self.processes[number] = place.process = process
        place.next_start = None


def _fields(process: Process, **more: object) -> dict[str, dict[str, object]]:
    return {"fields": {"pid": process.pid, "exit_code": process.exitcode, **more}}
