"""``trails verify``: the auditors' command, and the oracle of the fault tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import msgspec

from app.chain.keys import PublicKey
from app.chain.verdict import Verdict
from app.cli.exits import complain, missing_package
from app.cli.outcome import console_for, print_run
from app.errors import KeyMaterialError
from app.verification.anchors import Anchor, Heads, parse_checkpoint, read_heads
from app.verification.exported import FileOptions, Progress, sizes
from app.verification.files import FileMarks, verify_files
from app.verification.marks import marks_of, trust_of, written
from app.verification.missing import missing_chains
from app.verification.outcome import SOUND, Finding, Run, reason_of

_HELP: Final = """Verify exported files, or (without FILE) the whole database.

Every record is checked: its text against its hash, its place, its predecessor, its signature; and every
snapshot of a chain against what the records before it come to. In a database every column is compared
with the signed text, the registry with the chains, and the catalog (triggers, CHECKs, policies) with what
the migrations made.

\b
Examples:
  trails verify                                    the database of TRAILS_DATABASE_URL or trails-data
  trails verify --agent scout --checkpoint 41:9f2c…  the chain must still hold that head
  trails verify --save-heads heads.txt             keep heads elsewhere; later: --heads heads.txt
  trails verify scout.jsonl --public-key 03a1…     against the key you were given
  trails verify audit.zip --public-key 03a1…       a bundle: its manifest, every member and chain
  trails verify --resume nightly.mark --mark nightly.mark   what is new since the last time
  curl … | trails verify - --json                  from a pipe, for programs

Several processes share the work (--jobs); the verdict is that of one. Memory does not grow with the length of
a chain: each process holds one piece of the table at a time (8 MiB of text, or one record that is larger).
Whatever ends before its time, a process or the connection, is no success: "could not check". Ctrl-C ends it
without a verdict, with 130.

With --mark MARK it writes there, every few seconds and at the end, how far each chain is verified, signed
(with a key derived from the master key, else with one of your own in MARK.key). With --resume MARK it goes on
from there: records before the mark are not read, the one at the mark must be there still, and the verdict is
"verified from a mark on", never "verified". What was changed before the mark since then, only a whole
verification finds; so keep marks, and MARK.key, where those cannot write whom you watch. Chains of
administration, and chains of which --heads or --checkpoint names a record before the mark, are read whole.

A verification changes nothing of what it looks at. With --record its outcome is put on record in the
administration chain of each tenant, which takes the master key and the service's database role.

Every tenant has a key of its own: with --public-key name all of them, or one with --tenant.

A file must be as it was exported: a byte order mark or CRLF line endings are "file altered". A line cut in
the middle is "incomplete". Of a file that says at its end what it holds (an export of many chains, a bundle,
CSV) so is a missing end. Without a head kept elsewhere no reading of bare lines can tell that a tail was cut,
and the answer says so.

\b
Exit codes (text, --json and --quiet agree):
  0  verified: everything sound, signed by a trusted key
  1  tampered: something was changed (outranks all others)
  2  the command line cannot be read
  3  incomplete: a head kept elsewhere is beyond the end, or a line, an act or an export is cut
  4  nothing to verify: no record was looked at
  5  could not check: unreadable file, no export, database away, newer format
  6  self-declared: sound, but no trusted key; pin one with --public-key
  7  another key: sound, but begun with a key that is not the pinned one
  8  verified from a mark on: what stands before the mark was not read (--resume)
"""


_MOST_JOBS: Final = 4


class Options(msgspec.Struct, frozen=True):
    """The command line, read."""

    files: tuple[str, ...]
    agent_id: str | None
    tenant: str | None
    pinned: dict[str, PublicKey]
    anchors: tuple[Anchor, ...]
    show_progress: bool
    record: bool
    jobs: int
    mark: Path | None
    resume: Path | None


@click.command("verify", help=_HELP, short_help="Check exported files or a whole database.")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--database", is_flag=True, help="Verify the database (what happens without FILE).")
@click.option("--agent", "agent_id", metavar="ID", help="Only this agent's chain.")
@click.option("--tenant", metavar="SLUG", help="Only this tenant (database).")
@click.option("--public-key", "public_keys", metavar="HEX", multiple=True, help="Trust this key; repeatable.")
@click.option(
    "--checkpoint", "given", metavar="SEQ:HASH", multiple=True, help="A head that the chain must hold."
)
@click.option("--heads", metavar="FILE", type=click.Path(path_type=Path), help="Heads that chains must hold.")
@click.option("--save-heads", metavar="FILE", type=click.Path(path_type=Path), help="Write the heads found.")
@click.option("--record", is_flag=True, help="Put the outcome on record (database).")
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1, 64),
    help="Processes that share the work (default: one a CPU, up to 4).",
)
@click.option(
    "--mark",
    metavar="MARK",
    type=click.Path(path_type=Path),
    help="Write there, now and then, how far it is.",
)
@click.option(
    "--resume",
    metavar="MARK",
    type=click.Path(path_type=Path),
    help="Go on from a mark; see above what that misses.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option("--quiet", is_flag=True, help="Only the exit code.")
def command(  # noqa: D103  click shows _HELP
    *,
    files: tuple[str, ...],
    database: bool,
    agent_id: str | None,
    tenant: str | None,
    public_keys: tuple[str, ...],
    given: tuple[str, ...],
    heads: Path | None,
    save_heads: Path | None,
    record: bool,
    jobs: int | None,
    mark: Path | None,
    resume: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    if files and (database or record or tenant is not None):
        raise click.UsageError("FILE and --database, --record or --tenant exclude each other")
    pinned = _pinned(public_keys)
    kept = _kept(given, heads, single=len(files) == 1 or (not files and agent_id is not None))
    try:
        run = _verify(
            Options(
                files=files,
                agent_id=agent_id,
                tenant=tenant,
                pinned=pinned,
                anchors=kept.anchors,
                show_progress=not (as_json or quiet),
                record=record,
                jobs=jobs or default_jobs(),
                mark=mark,
                resume=resume,
            )
        )
    except KeyboardInterrupt:
        if not quiet:
            complain(_interrupted(mark))
        raise
    except Exception as error:  # noqa: BLE001  whatever goes wrong must never look like "tampered"
        run = Run((), (Finding(Verdict.UNCHECKED, "verification", reason_of(error)),))
    troubles = (Finding(Verdict.UNCHECKED, "heads", trouble) for trouble in kept.troubles)
    run = msgspec.structs.replace(run, findings=(*run.findings, *troubles))
    if save_heads is not None and run.verdict in SOUND:
        run = _with_saved_heads(run, save_heads)
    if as_json:
        click.echo(run.to_json())
    elif not quiet:
        print_run(run, console_for())
    return run.verdict.exit_code


def _interrupted(mark: Path | None) -> str:
    if mark is None:
        return "interrupted before the end, which is no verdict; with --mark MARK it could go on from here"
    if not mark.exists():
        return f"interrupted before the end, which is no verdict; {mark} was not written yet"
    return f"interrupted before the end, which is no verdict; go on with: --resume {mark} --mark {mark}"


def default_jobs() -> int:
    """Processes that share the work when nobody says how many: beside one server, more gain little."""
    return min(
        _MOST_JOBS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def _verify(options: Options) -> Run:
    if options.files:
        return _verify_files(options)
    try:
        from app.cli.verify_database import verify_database  # noqa: PLC0415  needs the server's packages
    except ModuleNotFoundError as error:
        return Run((), (Finding(Verdict.UNCHECKED, "database", missing_package(error)),))
    with _progress(options, "records", None) as progress:
        return asyncio.run(
            verify_database(
                os.environ,
                agent_id=options.agent_id,
                tenant=options.tenant,
                pinned=tuple(options.pinned.values()),
                anchors=options.anchors,
                progress=progress,
                record=options.record,
                jobs=options.jobs,
                mark=options.mark,
                resume=options.resume,
            )
        )


def _verify_files(options: Options) -> Run:
    wanted = FileOptions(options.pinned, options.anchors, options.agent_id)
    before, writer = marks_of(
        os.environ,
        options.mark,
        options.resume,
        of="files",
        trust=trust_of(options.pinned.values(), keys=False),
    )
    with _progress(options, "bytes", sizes(options.files)) as progress:
        outcomes = verify_files(
            options.files, wanted, progress, jobs=options.jobs, marks=FileMarks(before, writer)
        )
    findings = () if writer is None else written(writer)
    unread = any(outcome.verdict is Verdict.UNCHECKED for outcome in outcomes)
    missing = [] if unread else missing_chains(options.anchors, outcomes, agent_id=options.agent_id)
    return Run((*outcomes, *missing), findings)


def _pinned(texts: Iterable[str]) -> dict[str, PublicKey]:
    try:
        keys = [PublicKey.load(text.strip().lower()) for text in texts]
    except KeyMaterialError as error:
        raise click.BadParameter(error.message, param_hint="--public-key") from None
    return {key.hex: key for key in keys}


def _kept(given: Iterable[str], heads: Path | None, *, single: bool) -> Heads:
    """All heads that chains must hold; what cannot be made of a file of heads is no reason not to verify."""
    try:
        checkpoints = [parse_checkpoint(text) for text in given]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if checkpoints and not single:
        raise click.UsageError("a head without the name of its chain needs one FILE or --agent ID")
    found = Heads() if heads is None else read_heads(heads)
    usable = tuple(anchor for anchor in found.anchors if single or anchor.named)
    troubles = found.troubles
    if len(usable) < len(found.anchors):
        unnamed = f"{len(found.anchors) - len(usable)} heads in {heads} do not say of which chain they are"
        troubles = (*troubles, f"{unnamed}; that needs one FILE or --agent ID")
    return Heads((*checkpoints, *usable), troubles)


def _with_saved_heads(run: Run, path: Path) -> Run:
    lines = [
        f"{outcome.report.head.seq}:{outcome.report.head.hash} {outcome.log_uuid} {outcome.name}\n"
        for outcome in run.outcomes
        if outcome.report is not None and outcome.report.head is not None
    ]
    try:
        path.write_text("".join(lines), "utf-8")
    except OSError as error:
        finding = Finding(Verdict.UNCHECKED, "heads", f"{path} cannot be written: {error.strerror}")
        return msgspec.structs.replace(run, findings=(*run.findings, finding))
    return run


@contextmanager
def _progress(options: Options, unit: str, total: int | None) -> Iterator[Progress]:
    """A bar on standard error, if somebody looks."""
    console = console_for(stderr=True)
    if not options.show_progress or not console.is_terminal:
        yield lambda _: None
        return
    from rich import progress as rich_progress  # noqa: PLC0415  slow, and rarely needed

    columns = (
        rich_progress.TextColumn("verifying"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.completed:,} " + unit),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("verifying", total=total)
        yield lambda step: bar.advance(task, step)
