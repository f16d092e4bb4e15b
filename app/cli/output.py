"""Where a command writes a file: whole under its name or not at all; what is there is not replaced."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from app.cli.exits import CommandError, let_go_of_stdout
from app.cli.outcome import console_for

STDOUT: Final = "-"


class Output(msgspec.Struct, frozen=True):
    """Where to write, whether a file that is there is replaced, and whether it is shown how far it is."""

    target: str
    force: bool
    shown: bool


Show = Callable[[int], None]
"""Is told how many records were written so far."""


def refuse_to_replace(target: str) -> None:
    """An older export may be the only proof of what a chain was.

    Raises:
        CommandError: the file is there.
    """
    if target != STDOUT and os.path.lexists(target):
        raise CommandError(f"{target} is there already; name another file with --out, or replace it: --force")


def require_folder(path: Path) -> None:
    """Raises CommandError when there is no folder to write into."""
    if not path.parent.is_dir():
        raise CommandError(f"the folder {path.parent.absolute()} is not there; make it first")


class Writing(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object:
        """Takes all of them."""


class _Told:
    """A file of which it is told here when it cannot be written: elsewhere it might pass for the database."""

    def __init__(self, file: BinaryIO, target: str) -> None:
        self._file = file
        self._target = target

    def write(self, data: bytes, /) -> None:
        """Writes all of it."""
        with _telling(self._target):
            self._file.write(data)


@contextmanager
def output(to: Output) -> Iterator[Writing]:
    """Standard output, or a file that gets its name when it is complete and on disk.

    Raises:
        CommandError: it cannot be written.
    """
    if to.target == STDOUT:
        yield _Told(sys.stdout.buffer, to.target)
        with _telling(to.target):
            sys.stdout.buffer.flush()
        return
    path = Path(to.target)
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with _telling(to.target):
        file = draft.open("xb")
    try:
        yield _Told(file, to.target)
        with _telling(to.target):
            file.flush()
            os.fsync(file.fileno())
        if not to.force:
            refuse_to_replace(to.target)  # somebody may have made it meanwhile
        with _telling(to.target):
            draft.replace(path)
    finally:
        with contextlib.suppress(OSError):  # what did not fit will not fit now either
            file.close()
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


@contextmanager
def _telling(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(cannot_be_written(target, error)) from error


def cannot_be_written(target: str, error: OSError) -> str:
    """What is said of it; nothing more is written to standard output then."""
    if target == STDOUT:
        let_go_of_stdout()
        return f"standard output cannot be written: {error.strerror}"
    return f"{error.filename or target} cannot be written: {error.strerror}"


@contextmanager
def progress(total: int | None, *, shown: bool = True) -> Iterator[Show]:
    """A bar on standard error, if somebody looks; without a total it only counts."""
    console = console_for(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda _: None
        return
    from rich import progress as rich_progress  # noqa: PLC0415  slow, and rarely needed

    columns = (
        rich_progress.TextColumn("exporting"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.completed:,} records"),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("exporting", total=total)
        yield lambda count: bar.update(task, completed=count)
