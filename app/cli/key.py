"""``trails key``: API keys of a tenant."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any, Final

import click

from app.cli.exits import FAILED, CommandError, complain
from app.cli.listing import expiry, json_option, print_rows, signer_option, tenant_option, until_option
from app.cli.local import ACTOR, local_ledger, root_grant, settings_here
from app.errors import NotFoundError
from app.ledger.keys.keystore import FRESH_SECS, SETTLE_SECS
from app.ledger.tenancy.administration import NewKey, told, told_row
from app.principal import Permission, Role

_HELP: Final = """Issue, list and revoke API keys; rotate a tenant's signing key.

A key acts for one tenant in one role: operator (everything in the tenant), auditor (read and verify),
writer (post traces and events for any agent), agent (its own agent alone). It is shown once; the database
keeps a hash. What is done here is on record in the tenant's administration chain: trails show
_administration.

\b
Examples:
  trails key issue --role writer --name ingest
  trails key issue --role agent --agent scout --name laptop --expires 90d
  trails key list
  trails key revoke 9f86d081884c7d65
  trails key rotate-signing --tenant acme
  trails key rotate-signing --tenant acme --signer file:/run/keys/acme.pem
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
            asking = root_grant(await ledger.tenant_id(tenant), Permission.ISSUE_KEY)
            issued = await ledger.administration.issue_key(asking, wanted)
            return told(issued.key), issued.token

    key, token = asyncio.run(run())
    if as_json:
        click.echo(json.dumps({"key": key, "token": token}))
        return
    click.echo(f"key id   {key['key_id']} ({role}{f' of {agent}' if agent else ''}, {name})")
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
            asking = root_grant(await ledger.tenant_id(tenant), Permission.LIST_KEYS)
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
            asking = root_grant(await ledger.tenant_id(tenant), Permission.REVOKE_KEY)
            try:
                return told_row(await ledger.administration.revoke_key(asking, key_id))
            except NotFoundError as error:
                raise CommandError(
                    f"tenant {tenant} has no key {key_id}; see trails key list --tenant {tenant}"
                ) from error

    print_rows("keys", _COLUMNS, [asyncio.run(run())], as_json=as_json)


@command.command("rotate-signing", short_help="Give a tenant a new signing key.")
@tenant_option
@signer_option
@click.option(
    "--at-once/--lazily",
    default=True,
    help="Hand every chain over now (default), or each at its next record.",
)
@json_option
def rotate_signing(*, tenant: str, signer: str | None, at_once: bool, as_json: bool) -> None:
    """Give a tenant a new signing key.

    A record that the old key signs hands each chain over; from the next record on the new one signs. What the
    old one signed verifies for ever. Chains that are handed over lazily accept the old key until their next
    record: after a theft hand over at once.

    With --signer the key is kept elsewhere, and the database holds its public half alone: file:/path (mode
    0600), env:NAME, or a scheme of an installed package. Every server must be able to open it; where one
    cannot, what is to be written there for the tenant is answered with 503, and reading goes on. Keep the old
    source until every chain is handed over. Without --signer the new key is in the database again.
    """
    public, handed, problems = asyncio.run(_rotate(tenant, signer, at_once=at_once))
    if as_json:
        click.echo(json.dumps({"public_key": public, "handed_over": handed, "problems": problems}))
    else:
        click.echo(f"public key   {public}")
        click.echo(f"handed over  {handed} chain{'' if handed == 1 else 's'}")
    for agent_id, problem in problems.items():
        complain(f"{agent_id}: {problem}")
    if problems:
        raise click.exceptions.Exit(FAILED)


async def _rotate(tenant: str, signer: str | None, *, at_once: bool) -> tuple[str, int, dict[str, str]]:
    problems: dict[str, str] = {}
    handed = 0
    async with local_ledger(settings_here()) as ledger:
        tenant_id = await ledger.tenant_id(tenant)
        public = await ledger.administration.rotate_signing(tenant_id, ACTOR, signer)
        if at_once:
            await asyncio.sleep(SETTLE_SECS + FRESH_SECS)  # by then every server knows the key
            async for one in ledger.administration.hand_over(tenant_id, public):
                if one.problem is None:
                    handed += 1
                else:
                    problems[one.agent_id] = one.problem
    return public, handed, problems
