"""Where a command writes a file: whole under its name or not at all; what is there is not replaced."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from app.cli.exits import CommandError
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


@contextmanager
def output(to: Output) -> Iterator[BinaryIO]:
    """Standard output, or a file that gets its name when it is complete and on disk."""
    if to.target == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(to.target)
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not to.force:
            refuse_to_replace(to.target)  # somebody may have made it meanwhile
        draft.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


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
