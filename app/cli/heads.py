"""``trails heads``: what becomes of heads that a restored database does not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from app import heads
from app.cli.exits import CommandError, complain
from app.cli.local import ACTOR, local_ledger, settings_here
from app.errors import NotFoundError
from app.heads import Hashes, KeptHeads
from app.ledger.watch.heads import Behind, Compared, unusable
from app.settings import Settings
from app.text import printable

if TYPE_CHECKING:
    from app.chain.strict import JsonObject, JsonValue
    from app.ledger import Ledger

_HELP: Final = """The file of heads that the service keeps (TRAILS_HEADS_FILE).

After a restore of an older backup the service refuses to go on with chains of which the file knows more than
the table holds. Bring a newer backup, or accept the loss.

\b
Examples:
  trails verify --heads "$TRAILS_HEADS_FILE"        what is missing
  trails heads accept --agent scout --reason "restored the backup of Monday"
  trails heads accept --reason "restored the backup of Monday"      all of them
"""

_WAIT_SECS: Final = 20.0
"""How long a service may be writing the file."""

_NAMED: Final = 5
"""Chains that a sentence names."""

_TOLD_AT_ONCE: Final = 500
"""Chains that one record tells of: about 150 kB."""


@click.group("heads", help=_HELP, short_help="Accept that records which were seen before are lost.")
def command() -> None:  # noqa: D103  click shows _HELP
    pass


@command.command("accept", short_help="Go on from what the database holds now.")
@click.option("--tenant", metavar="SLUG", help="Only this tenant.")
@click.option("--agent", "agent_id", metavar="ID", help="Only this agent's chain.")
@click.option("--reason", required=True, help="Why; it stands on the record.")
def accept(*, tenant: str | None, agent_id: str | None, reason: str) -> None:
    """Go on from what the database holds now.

    What is accepted is told in the tenant's administration chain, with the record that was seen. A service
    that runs takes it up with its next round.
    """
    settings = settings_here()
    if settings.heads_file is None:
        raise CommandError("there is no file of heads: set TRAILS_HEADS_FILE to that of the service")
    try:
        accepted = asyncio.run(_accept(settings, settings.heads_file, tenant, agent_id, reason))
    except (OSError, ValueError) as error:
        raise unusable(settings.heads_file, error) from error
    for chain in accepted:
        click.echo(printable(f"accepted  {chain}; it goes on from {_place(chain.head)}"))
    if not accepted:
        click.echo("the database holds all that was seen; nothing to accept")


async def _accept(
    settings: Settings, path: Path, tenant: str | None, agent_id: str | None, reason: str
) -> list[Behind]:
    with heads.held(path, wait_secs=_WAIT_SECS) as alone:
        if not alone:
            raise CommandError(f"{path} is being written by a service; try again")
        kept = heads.read(path)
        # What is to be accepted must not keep this command itself from the record.
        async with local_ledger(msgspec.structs.replace(settings, heads_file=None)) as ledger:
            compared = await ledger.compare_heads(kept)
            behind = compared.behind
            wanted = [chain for chain in behind if _is_of(chain, tenant, agent_id)]
            if behind and not wanted:
                raise CommandError(_others(behind))
            await _put_on_record(ledger, wanted, reason)
            if wanted:  # a file that is away for a moment is not made anew, without anything that was seen
                heads.replace(path, _without(compared, wanted))
    return wanted


def _others(behind: Sequence[Behind]) -> str:
    """What is said to who names none of the chains that are behind."""
    named = ", ".join(chain.told or chain.name for chain in behind[:_NAMED])
    more = f" and {len(behind) - _NAMED} more" if len(behind) > _NAMED else ""
    return f"nothing to accept there; what is behind is {named}{more}"


def _is_of(chain: Behind, tenant: str | None, agent_id: str | None) -> bool:
    slug, _, agent = (chain.told or chain.name).rpartition("/")
    return (tenant is None or slug == tenant) and (agent_id is None or agent == agent_id)


async def _put_on_record(ledger: Ledger, accepted: Sequence[Behind], reason: str) -> None:
    by_tenant: dict[str, list[Behind]] = {}
    for chain in accepted:
        by_tenant.setdefault((chain.told or chain.name).rpartition("/")[0], []).append(chain)
    for slug, chains in by_tenant.items():
        try:
            tenant_id = chains[0].tenant_id or await ledger.tenant_id(slug)
        except NotFoundError:
            complain(f"not on record: {slug or chains[0].name} has no tenant in this database")
            continue
        for first in range(0, len(chains), _TOLD_AT_ONCE):
            told: list[JsonValue] = [_told(chain) for chain in chains[first : first + _TOLD_AT_ONCE]]
            payload: JsonObject = {"act": "heads_accepted", "reason": reason, "chains": told}
            await ledger.administration.record(tenant_id, ACTOR, payload)


def _told(chain: Behind) -> JsonObject:
    seen = max(chain.seen.items())
    return {
        "chain": chain.name,
        "agent_id": chain.agent_id,
        "seen": {"seq": seen[0], "hash": seen[1]},
        "head": None if chain.head is None else {"seq": chain.head[0], "hash": chain.head[1]},
    }


def _without(compared: Compared, accepted: Sequence[Behind]) -> KeptHeads:
    """The file without the heads that are accepted as lost, by whichever name it calls their chains.

    A bare agent's name is that of other tenants' agents, too: for those of them that are behind it stays,
    under a name that is theirs alone.
    """
    kept = compared.kept
    dropped = {name for chain in accepted for name in (chain.name, chain.told, chain.agent_id)}
    seen: dict[str, Hashes] = {name: hashes for name, hashes in kept.heads.items() if name not in dropped}
    told = dict(kept.told)
    for chain in compared.behind:
        bare = chain.agent_id or ""
        if chain not in accepted and bare in dropped and bare in kept.heads:
            seen[chain.told] = {**seen.get(chain.told, {}), **kept.heads[bare]}
    for chain in accepted:
        if chain.head is not None:
            seen[chain.name], told[chain.name] = {chain.head[0]: chain.head[1]}, chain.told
    return KeptHeads(seen, told)


def _place(head: tuple[int, str] | None) -> str:
    return "nothing" if head is None else f"{head[0]}:{head[1]}"
