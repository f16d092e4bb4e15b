"""How a command ends: one place turns every way out into an exit code and one sentence.

=====  ==========================================================
0      done
1      refused or failed; the message says what to do (``verify``: tampered)
2      the command line cannot be read
5      ``verify`` and what else has a code of its own: see ``app.chain.verdict``
130    interrupted
=====  ==========================================================
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from app.errors import TrailsError
from app.text import printable

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

_INSUFFICIENT_PRIVILEGE: Final = "42501"


class CommandError(click.ClickException):
    """A command that cannot go on; the message says what to do about it."""


def run_command(command: click.Command, arguments: Sequence[str]) -> int:
    """Runs ``command`` and returns its exit code; every error becomes one line on stderr."""
    try:
        outcome = command.main(args=list(arguments), prog_name="trails", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        let_go_of_stdout()
        return FAILED
    except (click.ClickException, TrailsError, ModuleNotFoundError) as error:
        return _refused(error)
    return outcome if isinstance(outcome, int) else 0


def complain(message: str) -> None:
    """One line on stderr that no text in it can steer."""
    click.echo(f"trails: {printable(message)}", err=True)


def missing_package(error: ModuleNotFoundError) -> str:
    """What to do when a package of the server is not installed; re-raises what is a defect of ours."""
    if (error.name or "").partition(".")[0] in {"app", "db"}:
        raise error
    return (
        f"this command needs the package {error.name}, which is not installed; "
        "install the server's packages with: pip install 'lineage-trails[server]'"
    )


def _refused(error: click.ClickException | TrailsError | ModuleNotFoundError) -> int:
    if isinstance(error, click.UsageError):
        error.show()
        return USAGE
    if isinstance(error, ModuleNotFoundError):
        complain(missing_package(error))
        return FAILED
    complain(_privilege_missing(error) or error.message)
    return error.exit_code if isinstance(error, click.ClickException) else FAILED


def _privilege_missing(error: click.ClickException | TrailsError) -> str | None:
    """What the database said when the role may not do it: to try again helps nobody."""
    cause = error.__cause__
    if getattr(cause, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
        return None
    return f"the role of TRAILS_DATABASE_URL may not do this (SQLSTATE {_INSUFFICIENT_PRIVILEGE}): {cause}"


def let_go_of_stdout() -> None:
    """No reader is left (``trails … | head``), or no room: nothing more is written, not even at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
