"""``trails redaction``: what is taken out of records before they are written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import BinaryIO, Final

import click

from app.chain.strict import JsonValue, parse
from app.cli.listing import json_option, print_rows, tenant_option
from app.cli.local import local_ledger, root_grant, settings_here
from app.errors import TrailsError
from app.principal import Permission
from app.redaction import RuleList
from app.redaction.names import MEANINGS
from app.redaction.redactor import Findings, Redactor

_HELP: Final = """Choose what is taken out of records before they are hashed and signed.

A record cannot be changed later, so secrets in what agents send are replaced by [REDACTED] before it is
written, and the record says where, and by which rule. Every tenant begins with the built-in patterns for
credentials. Paths are JSONPaths into inputs, outputs, metadata and the data of events: $.customer.ssn names
one member, $..ssn every member of this name.

\b
Examples:
  trails redaction show
  trails redaction set --add card_numbers --path '$..ssn' --path '$.customer.email'
  trails redaction set --remove url_passwords
  echo '{"password": "x", "note": "Bearer abc1"}' | trails redaction try -
"""

_NAMES = click.Choice(list(MEANINGS))


@click.group("redaction", help=_HELP, short_help="Choose what is taken out of records.")
def command() -> None:  # noqa: D103  click shows _HELP
    pass


@command.command("show", short_help="The rules of a tenant, and what there is.")
@tenant_option
@json_option
def show(*, tenant: str, as_json: bool) -> None:
    """The rules of a tenant, and what there is."""
    _print(asyncio.run(_rules_of(tenant)), as_json=as_json)


@command.command("set", short_help="Change the rules; the change is on record.")
@click.option("--add", "added", type=_NAMES, multiple=True, help="A built-in pattern to use.")
@click.option("--remove", "removed", type=_NAMES, multiple=True, help="One to use no more.")
@click.option("--path", "paths", metavar="JSONPATH", multiple=True, help="A path to take out, too.")
@click.option("--no-path", "dropped", metavar="JSONPATH", multiple=True, help="One to take out no more.")
@tenant_option
@json_option
def set_(
    *,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    paths: tuple[str, ...],
    dropped: tuple[str, ...],
    tenant: str,
    as_json: bool,
) -> None:
    """Change the rules; the change is on record. Records that are written already stay as they are."""
    if not (added or removed or paths or dropped):
        raise click.UsageError("say what to change: --add, --remove, --path or --no-path")

    async def run() -> RuleList:
        async with local_ledger(settings_here()) as ledger:
            given = root_grant(await ledger.tenant_id(tenant), Permission.SET_REDACTION)
            before = await ledger.redaction(given)
            unknown = [path for path in dropped if path not in before.paths]
            if unknown:
                raise click.BadParameter(f"{unknown[0]} is not among the paths", param_hint="--no-path")
            wanted = RuleList.parse(
                {
                    "patterns": _changed(before.patterns, added, removed),
                    "paths": _changed(before.paths, paths, dropped),
                },
                0,
            )
            return await ledger.administration.set_redaction(given, wanted)

    _print(asyncio.run(run()), as_json=as_json)


@command.command("try", short_help="Show what the rules would leave of a JSON document.")
@click.argument("file", type=click.File("rb"))
@tenant_option
def try_(*, file: BinaryIO, tenant: str) -> None:
    """Show what the rules would leave of FILE, a JSON document (- reads standard input); writes nothing."""
    raw = file.read()
    rules = asyncio.run(_rules_of(tenant))
    try:
        value = parse(raw).value
    except TrailsError as error:
        raise click.BadParameter(error.message, param_hint="FILE") from error
    redactor, found = Redactor(rules, b""), Findings()
    kept = redactor.value(value, "", found)
    click.echo(json.dumps({"left": kept, "redacted": redactor.note(found)}, indent=2))


def _changed(before: Sequence[str], added: Sequence[str], removed: Sequence[str]) -> list[JsonValue]:
    """What is there and what is added, each once, in this order, without what is removed."""
    return [name for name in dict.fromkeys((*before, *added)) if name not in removed]


async def _rules_of(tenant: str) -> RuleList:
    async with local_ledger(settings_here()) as ledger:
        return await ledger.redaction(root_grant(await ledger.tenant_id(tenant), Permission.READ_REDACTION))


def _print(rules: RuleList, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rules.described()))
        return
    rows = [
        {
            "rule": name,
            "in use": "yes" if name in rules.patterns else "no",
            "takes out": meaning,
        }
        for name, meaning in MEANINGS.items()
    ]
    rows += [{"rule": path, "in use": "yes", "takes out": "what stands there"} for path in rules.paths]
    click.echo(f"version {rules.version}")
    print_rows("rules", ("rule", "in use", "takes out"), rows, as_json=False)
