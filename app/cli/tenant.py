"""``trails tenant``: who shares this installation."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import click

from app.cli.listing import json_option, print_rows, signer_option
from app.cli.local import ACTOR, local_ledger, settings_here
from app.ledger.tenancy.administration import NewTenant, told, written

_HELP: Final = """Create, list and suspend tenants.

Tenants share the installation and see nothing of one another: each has its own signing key, its own chains
and its own keys. A suspended one writes nothing; its records stay readable and verifiable. Nothing deletes a
tenant.

\b
Examples:
  trails tenant create acme --name "Acme Ltd" --operator Ada
  trails tenant list
  trails tenant suspend acme --reason "contract ended"
  trails tenant resume acme --reason "contract renewed"
"""

_REASON = click.option("--reason", required=True, help="Why; it stands on the record.")


@click.group("tenant", help=_HELP, short_help="Create, list and suspend tenants.")
def command() -> None:  # noqa: D103  click shows _HELP
    pass


@command.command("create", short_help="Make a tenant; its first operator's key is shown once.")
@click.argument("slug")
@click.option("--name", required=True, help="What the tenant is called in full.")
@click.option("--operator", required=True, help="Name of its first operator's key: a person's.")
@signer_option
@json_option
def create(*, slug: str, name: str, operator: str, signer: str | None, as_json: bool) -> None:
    """Make a tenant; its first operator's key is shown once."""

    async def run() -> tuple[str, dict[str, Any], str]:
        async with local_ledger(settings_here()) as ledger:
            wanted = NewTenant(slug, name, operator, signer)
            tenant, issued = await ledger.administration.create_tenant(wanted, ACTOR)
            return str(tenant.tenant_id), told(issued.key), issued.token

    tenant_id, key, token = asyncio.run(run())
    if as_json:
        click.echo(json.dumps({"tenant_id": tenant_id, "slug": slug, "key": key, "token": token}))
        return
    click.echo(f"tenant   {slug} ({tenant_id})")
    click.echo(f"key id   {key['key_id']} (operator, {operator})")
    click.echo(f"token    {token}")
    click.echo("The token is not shown again.", err=True)


@command.command("list", short_help="List tenants by slug.")
@json_option
def list_(*, as_json: bool) -> None:
    """List tenants by slug."""

    async def run() -> list[dict[str, Any]]:
        async with local_ledger(settings_here()) as ledger:
            return [
                {
                    "slug": row.slug,
                    "name": row.name,
                    "tenant_id": str(row.tenant_id),
                    "created_at": written(row.created_at),
                    "state": "suspended" if suspended else "active",
                }
                for row, suspended in await ledger.administration.tenants()
            ]

    print_rows(
        "tenants", ("slug", "name", "state", "tenant_id", "created_at"), asyncio.run(run()), as_json=as_json
    )


@command.command("suspend", short_help="Stop all writing for a tenant.")
@click.argument("slug")
@_REASON
def suspend(*, slug: str, reason: str) -> None:
    """Stop all writing for a tenant; its records stay readable."""
    asyncio.run(_suspend(slug, reason, suspended=True))
    click.echo(f"{slug} is suspended: its records can be read, nothing is written")


@command.command("resume", short_help="Let a suspended tenant go on.")
@click.argument("slug")
@_REASON
def resume(*, slug: str, reason: str) -> None:
    """Let a suspended tenant go on."""
    asyncio.run(_suspend(slug, reason, suspended=False))
    click.echo(f"{slug} goes on")


async def _suspend(slug: str, reason: str, *, suspended: bool) -> None:
    async with local_ledger(settings_here()) as ledger:
        tenant_id = await ledger.tenant_id(slug)
        await ledger.administration.suspend_tenant(tenant_id, ACTOR, reason, suspended=suspended)
