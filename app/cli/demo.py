"""``trails demo``: a scripted agent, a tampered copy, and the verifier that finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import click
from rich.text import Text

from app.audit.dump import dump_chain
from app.cli.demo_guarantees import (
    AGENT,
    GUARANTEES,
    IN_THE_DATABASE,
    OVER_HTTP,
    Guarantee,
    Play,
    UnexpectedAnswerError,
)
from app.cli.demo_stage import staged
from app.cli.exits import FAILED
from app.cli.outcome import console_for
from app.cli.show import records_table
from app.text import printable

_HELP: Final = """See it work, with nothing to set up: a temporary PostgreSQL and the real server are started,
a scripted agent asks over HTTP, and copies of the database are tampered with until the verifier says so.
Everything is removed afterwards.

Exit code 0 says that every guarantee held; 1 names those that did not. --break spoils one on purpose, to see
that the demo can fail.

\b
Guarantees (and what --break does to each):
{guarantees}

\b
Examples:
  trails demo
  trails demo --break tampering; echo $?
"""

_BREAKS: Final = {
    "policy": "the policy allows the tool that it should deny",
    "approval": "the agent is given the operator's token",
    "idempotency": "the retry comes under another Idempotency-Key",
    "outcome": "the first outcome is one that may be followed",
    "query": "the failed call is reported as a success",
    "termination": "the scar limit is out of reach",
    "append-only": "the triggers are switched off first",
    "verification": "a trigger is switched off",
    "tampering": "the tampering is left out",
    "cut": "the head that was kept is not given to the verifier",
    "restart": "the records since the beginning are deleted before the restart",
}


def _guarantees() -> str:
    return "\n".join(
        f"  {item.name:13} {item.says}\n{'':16}--break: {_BREAKS[item.name]}" for item in GUARANTEES
    )


@click.command("demo", help=_HELP.format(guarantees=_guarantees()), short_help="See tampering being found.")
@click.option(
    "--break",
    "broken",
    type=click.Choice([item.name for item in GUARANTEES]),
    help="Spoil one guarantee on purpose.",
)
def command(broken: str | None) -> int:  # noqa: D103  click shows _HELP
    console = console_for()
    console.print("Starting a PostgreSQL and the server of the demo…")
    with staged() as stage:
        play = Play(stage, console, broken)
        stage.start()
        failed = _show(play, OVER_HTTP)
        stage.kill()
        console.print(Text(f"\nThe records of {AGENT}:", style="bold"))
        _print_records(play)
        failed += _show(play, IN_THE_DATABASE)
    return _verdict(play, failed)


def _show(play: Play, guarantees: Iterable[Guarantee]) -> list[str]:
    """Plays some guarantees; returns the names of those that did not hold."""
    failed = []
    for item in guarantees:
        play.console.print(Text(f"\n{item.says}", style="bold"))
        try:
            happened = item.check(play)
        except UnexpectedAnswerError as error:
            happened = str(error)
        if happened is None:
            play.console.print(Text("  held", style="green"))
        else:
            play.console.print(Text(printable(f"  DID NOT HOLD: {happened}"), style="bold red"))
            failed.append(item.name)
    return failed


def _print_records(play: Play) -> None:
    async def read() -> None:
        records = [record.signed async for record in dump_chain(play.stage.admin_url, AGENT)]
        play.console.print(records_table(records), crop=False)

    asyncio.run(read())


def _verdict(play: Play, failed: list[str]) -> int:
    if failed:
        play.console.print(Text(f"\nGuarantees that did not hold: {', '.join(failed)}", style="bold red"))
        return FAILED
    play.console.print(Text(f"\nAll {len(GUARANTEES)} guarantees held.", style="bold green"))
    return 0
