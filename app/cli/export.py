"""``trails export``: records as files, for evidence, for reading and for warehouses."""

from __future__ import annotations

import asyncio
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from app.chain.strict import JsonObject
from app.cli.database import database_url
from app.cli.exits import CommandError
from app.cli.export_chain import Written, export_chain
from app.cli.export_whole import Summary, export_whole
from app.cli.on_record import put_on_record
from app.cli.output import STDOUT, Output, cannot_be_written, refuse_to_replace, require_folder
from app.ledger.export.told import EVIDENCE, PARTIAL
from app.ledger.export.wanted import VIEWS, Format, Wanted, file_name
from app.opening import look_directly
from app.settings import Settings
from app.trace.instant import parse_day_or_instant
from db.schema import DEFAULT_TENANT_SLUG

_HELP: Final = """Write records to a file, exactly as they were signed, in one snapshot of the database.

One AGENT without anything else gives its records alone, one signed line a record, which any verifier reads.
Everything else gives a file that says at its end what it holds and that it is whole, so that one that was cut
is found: JSON lines (also of one agent, with --format jsonl), CSV, Parquet, or with --bundle a ZIP file with
the chains, their heads, the public keys and a signed manifest. CSV and Parquet are copies, no evidence.

The head of a chain is printed on standard error: keep it elsewhere, it is what proves later that no tail was
cut. A file appears under its name only when it is complete; one that is there is not replaced. An export is
not a verification: run trails verify on it.

Where the master key and the service's database role are at hand, the export is put on record in the tenant's
administration chain, and its end is signed. Standard error says whether it was; a login that only reads
exports all the same.

\b
Examples:
  trails export scout                               writes scout.jsonl
  trails export scout --out /backup/scout.jsonl --head-file /elsewhere/scout.head
  trails export scout --out - | gzip > scout.jsonl.gz
  trails export scout --resume                      goes on with scout.jsonl.part
  trails export --bundle audit.zip                  all chains, to verify offline
  trails export --all --since 2026-01-01 --until 2026-02-01 --format csv
  trails export --view failed_tool_calls --format parquet --agent scout
  trails verify audit.zip --public-key "$key"
"""

_AGENT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@click.command("export", help=_HELP, short_help="Write records to a file.")
@click.argument("agents", metavar="[AGENT]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All chains of the tenant.")
@click.option("--agent", "more", metavar="ID", multiple=True, help="Of this agent; repeatable, as AGENT.")
@click.option("--view", type=click.Choice(list(VIEWS)), help="Rows of this view in place of records.")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv", "parquet"]), help="As which file.")
@click.option(
    "--bundle", metavar="FILE", help="A bundle: everything to verify offline; - is standard output."
)
@click.option("--since", metavar="TIME", help="Recorded at this day or time, or later.")
@click.option("--until", metavar="TIME", help="Recorded before this day or time.")
@click.option("--tenant", metavar="SLUG", help="Which tenant, where there are several.")
@click.option(
    "--out", metavar="FILE", help="Where to; - is standard output (default: a name that says what)."
)
@click.option("--resume", is_flag=True, help="Go on with what an interrupted export of AGENT has written.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--head-file", metavar="FILE", type=click.Path(path_type=Path), help="Write SEQ:HASH there.")
@click.option("--json", "as_json", is_flag=True, help="A summary as JSON on standard output.")
def command(  # noqa: D103  click shows _HELP
    *,
    agents: tuple[str, ...],
    everything: bool,
    more: tuple[str, ...],
    view: str | None,
    form: str | None,
    bundle: str | None,
    since: str | None,
    until: str | None,
    tenant: str | None,
    out: str | None,
    resume: bool,
    force: bool,
    head_file: Path | None,
    as_json: bool,
) -> None:
    options = _Options(
        agents=tuple(dict.fromkeys((*agents, *more))),
        everything=everything,
        view=view,
        form=form,
        bundle=bundle,
        since=since,
        until=until,
        tenant=tenant,
        out=out,
        resume=resume,
        force=force,
        head_file=head_file,
        as_json=as_json,
    )
    options.check()
    wanted, target = options.wanted, options.target
    for path in (None if target == STDOUT else Path(target), head_file):
        if path is not None:
            require_folder(path)
    if not force:
        refuse_to_replace(target)
    settings = Settings.from_env(os.environ)
    url = database_url(settings)
    asyncio.run(look_directly(url, embedded=None if settings.database_url else settings.data_dir))
    try:
        if options.is_chain:
            _chain(settings, url, options)
        else:
            exporting = export_whole(settings, url, wanted, tenant, Output(target, force, not as_json))
            _tell(asyncio.run(exporting), as_json=as_json)
    except OSError as error:
        raise CommandError(cannot_be_written(target, error)) from error


class _Options(msgspec.Struct, frozen=True):
    """The command line, read."""

    agents: tuple[str, ...]
    everything: bool
    view: str | None
    form: str | None
    bundle: str | None
    since: str | None
    until: str | None
    tenant: str | None
    out: str | None
    resume: bool
    force: bool
    head_file: Path | None
    as_json: bool

    def check(self) -> None:
        """Refuses what does not go together.

        Raises:
            click.UsageError: says what to leave out.
        """
        if any(_AGENT_ID.fullmatch(agent_id) is None for agent_id in self.agents):
            # The id names a file: one that could leave the folder is no id of ours either.
            raise click.BadParameter("an agent's id is 1 to 64 of A-Z a-z 0-9 _ -", param_hint="AGENT")
        for is_wrong, why in (
            (self.everything and bool(self.agents), "--all and AGENT exclude each other"),
            (
                not (self.everything or self.agents or self.view or self.bundle),
                "say what to export: AGENT, --all, --view NAME or --bundle FILE",
            ),
            (
                self.bundle is not None and bool(self.out or self.form),
                "--bundle FILE says where and as what: leave --out and --format out",
            ),
            (
                not self.is_chain and (self.resume or self.head_file is not None),
                "--resume and --head-file are for the records of one AGENT alone",
            ),
            (
                self.as_json and self.target == STDOUT,
                "--json writes to standard output, where the export goes already",
            ),
        ):
            if is_wrong:
                raise click.UsageError(why)

    @property
    def is_chain(self) -> bool:
        """Whether the records of one agent are wanted, and nothing else."""
        more = self.view or self.form or self.bundle or self.since or self.until
        return len(self.agents) == 1 and not more

    @property
    def wanted(self) -> Wanted:
        """What to export."""
        return Wanted(
            format=Format.BUNDLE if self.bundle else Format(self.form or Format.JSONL),
            view=self.view,
            agents=self.agents or None,
            since_us=_time("--since", self.since),
            until_us=_time("--until", self.until),
        ).check()

    @property
    def target(self) -> str:
        """Where to."""
        if (named := self.bundle or self.out) is not None:
            return named
        if self.is_chain:
            return f"{self.agents[0]}.jsonl"
        return file_name(self.tenant or DEFAULT_TENANT_SLUG, self.wanted, datetime.now(UTC))


def _chain(settings: Settings, url: str, options: _Options) -> None:
    agent_id, target = options.agents[0], options.target
    written = export_chain(
        url,
        agent_id,
        options.tenant,
        Output(target, options.force, not options.as_json),
        resume=options.resume,
    )
    _tell_chain(settings, agent_id, written, target, options.head_file, as_json=options.as_json)


def _tell_chain(
    settings: Settings,
    agent_id: str,
    written: Written,
    target: str,
    head_file: Path | None,
    *,
    as_json: bool,
) -> None:
    head = f"{written.head[0]}:{written.head[1]}"
    if head_file is not None:
        head_file.write_text(head + "\n", "utf-8")
    click.echo(f"{written.records} records in {target}, not verified; head:\n{head}", err=True)
    if written.resumed_after is not None:
        click.echo(f"gone on behind seq {written.resumed_after}, which was on disk", err=True)
    told = put_on_record(settings, written.tenant_id, written.on_record(agent_id))
    click.echo(f"this export is {told}", err=True)
    if as_json:
        said: JsonObject = {
            **written.on_record(agent_id),
            "file": target,
            "format": "jsonl",
            "rows": written.records,
            "complete_chains": True,
            "on_record": not told.startswith("not "),
            "signed": False,
        }
        click.echo(json.dumps(said))


def _tell(summary: Summary, *, as_json: bool) -> None:
    sums = summary.sums
    chains = "" if summary.wanted.view else f" of {sums['chains']} chain{'s' * (sums['chains'] != 1)}"
    what = "rows" if summary.wanted.view else "records"
    click.echo(f"{sums['rows']} {what}{chains} in {summary.file}, not verified", err=True)
    if summary.is_partial:
        click.echo(f"this is {PARTIAL}", err=True)
    if summary.wanted.format in {Format.CSV, Format.PARQUET} or summary.wanted.view:
        click.echo(EVIDENCE, err=True)
    heads = sums.get("heads")
    if isinstance(heads, list) and len(heads) == 1:
        click.echo(f"head:\n{heads[0]['seq']}:{heads[0]['hash']}", err=True)
    click.echo(f"this export is {summary.told}", err=True)
    if as_json:
        click.echo(summary.to_json())


def _time(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_day_or_instant(text)
    except ValueError:
        raise click.BadParameter(
            "must be a day such as 2026-11-30 (its start in UTC) or a time with its zone such as "
            "2026-11-30T08:27:35Z",
            param_hint=option,
        ) from None
