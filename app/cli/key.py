"""``trails key``: API keys of a tenant."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import click

from app.cli.listing import expiry, json_option, print_rows, tenant_option, until_option
from app.cli.local import ACTOR, local_ledger, settings_here
from app.ledger.administration import NewKey, told, told_row
from app.principal import Grant, Permission, Principal, Role, grant

_HELP: Final = """Issue, list and revoke API keys.

A key acts for one tenant in one role: operator (everything in the tenant), auditor (read, verify, export),
writer (post traces and events for any agent), agent (its own agent alone). It is shown once; the database
keeps a hash. What is done here is on record in the tenant's administration chain: trails show
_administration.

\b
Examples:
  trails key issue --role writer --name ingest
  trails key issue --role agent --agent scout --name laptop --expires 90d
  trails key list
  trails key revoke 9f86d081884c7d65
"""

_COLUMNS: Final = (
    "key_id",
    "role",
    "agent_id",
    "name",
    "created_at",
    "expires_at",
    "revoked_at",
    "last_used_at",
)


@click.group("key", help=_HELP, short_help="Issue, list and revoke API keys.")
def command() -> None:  # noqa: D103  click shows _HELP
    pass


@command.command("issue", short_help="Issue a key; it is shown once.")
@click.option("--role", type=click.Choice(["operator", "auditor", "writer", "agent"]), required=True)
@click.option("--name", required=True, help="What records call who acts with the key.")
@click.option("--agent", metavar="ID", help="The one agent of a key of role agent.")
@until_option
@tenant_option
@json_option
def issue(
    *, role: str, name: str, agent: str | None, expires: str | None, tenant: str, as_json: bool
) -> None:
    """Issue a key; it is shown once."""
    wanted = NewKey(Role(role), name, agent, expiry(expires, datetime.now(UTC)))

    async def run() -> tuple[dict[str, Any], str]:
        async with local_ledger(settings_here()) as ledger:
            asking = _grant(await ledger.tenant_id(tenant), Permission.ISSUE_KEY)
            issued = await ledger.administration.issue_key(asking, wanted)
            return told(issued.key), issued.token

    key, token = asyncio.run(run())
    if as_json:
        click.echo(json.dumps({"key": key, "token": token}))
        return
    click.echo(f"key      {key['key_id']} ({role}{f' of {agent}' if agent else ''}, {name})")
    click.echo(f"expires  {key['expires_at'] or 'never'}")
    click.echo(f"token    {token}")
    click.echo("It is not shown again. Send it as: Authorization: Bearer <token>", err=True)


@command.command("list", short_help="List keys, revoked ones too.")
@tenant_option
@json_option
def list_(*, tenant: str, as_json: bool) -> None:
    """List keys, revoked ones too."""

    async def run() -> list[dict[str, Any]]:
        async with local_ledger(settings_here()) as ledger:
            asking = _grant(await ledger.tenant_id(tenant), Permission.LIST_KEYS)
            return [told_row(row) for row in await ledger.administration.keys(asking)]

    print_rows("keys", _COLUMNS, asyncio.run(run()), as_json=as_json)


@command.command("revoke", short_help="End a key for good.")
@click.argument("key_id")
@tenant_option
@json_option
def revoke(*, key_id: str, tenant: str, as_json: bool) -> None:
    """End a key for good, within a second on every server."""

    async def run() -> dict[str, Any]:
        async with local_ledger(settings_here()) as ledger:
            asking = _grant(await ledger.tenant_id(tenant), Permission.REVOKE_KEY)
            return told_row(await ledger.administration.revoke_key(asking, key_id))

    print_rows("keys", _COLUMNS, [asyncio.run(run())], as_json=as_json)


def _grant(tenant_id: UUID, permission: Permission) -> Grant:
    return grant(Principal(tenant_id, Role.OPERATOR, ACTOR), permission)
