"""Heads kept in a file: written on a schedule, never lowered; no chain goes on that is behind one (C18)."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from app import heads
from app.errors import QuarantinedError, StartupError, TenantQuarantinedError
from app.ledger import Ledger
from app.ledger.watch.heads import HeadsKeeper
from app.principal import ADMINISTRATION
from app.verification.anchors import read_heads
from db.pool import Pool
from tests.support.cli import Result, run_trails
from tests.support.ledgers import MASTER_KEY, TABLE, Caller, SetClock, Table, json_of
from tests.support.postgres import Database

Start = Callable[..., Awaitable[Ledger]]

SEEN_7 = "record 7 was seen before and is not in the table"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "heads"


@pytest.fixture
async def neighbour(agent: Caller) -> Caller:
    """Another agent of the same tenant; both have asked three times, so that record 7 is the last."""
    other = Caller(agent.ledger, "agent-2")
    await other.create()
    for number in range(3):
        await agent.ask("search", number)
        await other.ask("search", number)
    return other


def keeper(ledger: Ledger, file: Path) -> HeadsKeeper:
    return HeadsKeeper(ledger._pool, ledger._seen, ledger.meter.heads, file, 60)


async def keep(ledger: Ledger, file: Path) -> None:
    await keeper(ledger, file).round(first=True)


@pytest.fixture
async def started(pool: Pool, clock: SetClock, file: Path) -> AsyncIterator[Start]:
    """Starts processes, with the file or (False) without it."""
    opened = []

    async def start(*, knowing: bool = True) -> Ledger:
        kept = heads.read(file) if knowing else heads.NO_HEADS
        opened.append(await Ledger.open(pool, master_key=MASTER_KEY, clock=clock, kept=kept))
        return opened[-1]

    yield start
    for ledger in opened:
        await ledger.close()


async def set_back(table: Table, agent: str = "agent-1", *, to: int) -> None:
    """The table as it was when ``to`` was an agent's last record."""
    await table.admin.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER USER")
    await table.admin.execute(f"DELETE FROM {TABLE} WHERE agent_id = $1 AND seq > $2", agent, to)
    await table.admin.execute(f"ALTER TABLE {TABLE} ENABLE TRIGGER USER")


def of_agent(file: Path, agent: str = "agent-1") -> list[int]:
    """What the file says of an agent, as ``trails verify`` reads it."""
    found = read_heads(file)
    assert found.troubles == ()
    names = heads.read(file).told
    return [anchor.seq for anchor in found.anchors if names[str(anchor.log_uuid)] == f"default/{agent}"]


async def test_the_newest_heads_of_all_chains_are_written(
    neighbour: Caller, agent: Caller, file: Path, table: Table
) -> None:
    await keep(agent.ledger, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    newest = await table.admin.fetch(
        f"SELECT DISTINCT ON (log_uuid) log_uuid, seq, hash FROM {TABLE} ORDER BY log_uuid, seq DESC"
    )
    assert heads.read(file).heads == {str(row["log_uuid"]): {row["seq"]: row["hash"]} for row in newest}
    assert len(newest) == 3
    assert sorted(heads.read(file).told.values()) == [
        f"default/{name}" for name in (ADMINISTRATION, agent.agent, neighbour.agent)
    ]
    await agent.ask("search", "more")
    await keep(agent.ledger, file)
    assert (of_agent(file), of_agent(file, neighbour.agent)) == ([9], [7])
    assert sorted(path.name for path in file.parent.iterdir()) == ["heads", "heads.lock"]


async def test_c18_a_chain_that_is_behind_is_not_gone_on_with_and_all_others_are(  # noqa: PLR0917  fixtures
    neighbour: Caller,
    agent: Caller,
    file: Path,
    table: Table,
    started: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await keep(agent.ledger, file)
    await set_back(table, to=5)
    ledger = await started()
    again = agent.at(ledger)
    for refused in (again.ask("search", "more"), again.status(), again.scar(), again.post()):
        with pytest.raises(QuarantinedError, match=SEEN_7):
            await refused
    assert len(await table.rows()) == 6
    assert (await again.listed())["state"] == "quarantined"
    verdict = await again.verify()
    assert (verdict["ok"], verdict["failure"]["seq"], verdict["verdict"]) == (False, 7, "tampered")
    assert json_of(await neighbour.at(ledger).ask())["decision"] == "allowed"

    keeps = keeper(ledger, file)
    with caplog.at_level(logging.ERROR, "trails.heads"):
        await keeps.round(first=True)
        await keeps.round(first=True)
    said = [record.getMessage() for record in caplog.records if record.name == "trails.heads"]
    remedy = "bring a newer backup, or accept the loss: trails heads accept"
    assert said == [f"heads: default/agent-1: {SEEN_7}; {remedy}"], "once, and what to do"
    assert ledger.meter.heads.behind == 1
    assert (of_agent(file), of_agent(file, neighbour.agent)) == ([7], [9]), "the lower head is not written"
    with pytest.raises(QuarantinedError, match=SEEN_7):
        await again.ask("search", "more")


async def test_a_chain_that_grew_another_tail_is_not_gone_on_with(
    neighbour: Caller, agent: Caller, file: Path, table: Table, started: Start
) -> None:
    """A process without the file went on from an older backup, further than the head that was seen."""
    del neighbour
    await keep(agent.ledger, file)
    await set_back(table, to=5)
    elsewhere = await started(knowing=False)
    for number in range(2):
        await agent.at(elsewhere).ask("search", f"another history {number}")
    ledger = await started()
    with pytest.raises(QuarantinedError, match="record 7 in the table is not the one that was seen before"):
        await agent.at(ledger).ask()
    await keep(ledger, file)
    assert of_agent(file) == [7]
    verdict = await agent.at(ledger).verify()
    assert (verdict["ok"], verdict["failure"]["seq"]) == (False, 7)


async def test_a_chain_in_memory_is_held_against_what_another_process_saw(
    neighbour: Caller, agent: Caller, twin: Caller, file: Path, table: Table
) -> None:
    del neighbour
    await twin.status()
    for number in range(2):
        await agent.ask("search", f"later {number}")
    await keep(agent.ledger, file)
    await set_back(table, to=9)
    await keep(twin.ledger, file)
    with pytest.raises(QuarantinedError, match="record 11 was seen before"):
        await twin.ask("search", "on")
    assert len(await table.rows()) == 10


@pytest.mark.parametrize("restored", [False, True], ids=["accepted", "brought back"])
async def test_what_is_accepted_or_brought_back_goes_on_without_a_restart(  # noqa: PLR0917  fixtures
    neighbour: Caller,
    agent: Caller,
    file: Path,
    table: Table,
    database: Database,
    started: Start,
    restored: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    del neighbour
    await keep(agent.ledger, file)
    await table.admin.execute(
        f"CREATE TEMP TABLE kept AS SELECT * FROM {TABLE} WHERE seq > 5 AND agent_id = 'agent-1'"
    )
    await set_back(table, to=5)
    ledger = await started()
    again, keeps = agent.at(ledger), keeper(ledger, file)
    with pytest.raises(QuarantinedError, match=SEEN_7):
        await again.ask()
    await keeps.round(first=True)
    with pytest.raises(QuarantinedError, match=SEEN_7):
        await again.ask()
    if restored:
        await _bring_back(table)
    else:
        await table.admin.execute(
            "DO $$ DECLARE t record; BEGIN FOR t IN SELECT tgrelid::regclass AS r, tgname FROM pg_trigger "
            f"WHERE NOT tgisinternal AND tgrelid = '{TABLE}'::regclass LOOP EXECUTE format("
            "'ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', t.r, t.tgname); END LOOP; END $$"
        )
        other = accept(database, file, "--agent", "agent-2", "--reason", "a slip")
        assert (other.code, "what is behind is default/agent-1" in other.err) == (1, True)
        assert of_agent(file) == [7], "nothing was accepted"
        said = accept(database, file, "--agent", "agent-1", "--reason", "restored Monday")
        assert said.code == 0, said.err
        assert f"default/agent-1: {SEEN_7}; it goes on from 5:" in said.out
        payload = (await table.records(ADMINISTRATION))[-1]["payload"]
        assert (payload["act"], payload["reason"]) == ("heads_accepted", "restored Monday")
        assert [(chain["seen"]["seq"], chain["head"]["seq"]) for chain in payload["chains"]] == [(7, 5)]
        assert of_agent(file) == [5]
        assert "nothing to accept" in accept(database, file, "--reason", "once more").out
    await keeps.round(first=True)
    assert json_of(await again.ask("search", "on"))["decision"] == "allowed"
    assert (await again.verify())["ok"] is True
    assert f"heads: settled: default/agent-1: {SEEN_7}" in caplog.text


async def _bring_back(table: Table) -> None:
    columns = await table.admin.fetchval(
        "SELECT string_agg(attname, ', ') FROM pg_attribute WHERE attgenerated = '' AND attnum > 0 "
        f"AND attrelid = '{TABLE}'::regclass"
    )
    await table.admin.execute(f"INSERT INTO {TABLE} ({columns}) SELECT {columns} FROM kept")


def accept(database: Database, file: Path, *options: str) -> Result:
    env = {
        "TRAILS_DATABASE_URL": database.app_url,
        "TRAILS_MASTER_KEY": MASTER_KEY.hex(),
        "TRAILS_HEADS_FILE": str(file),
    }
    return _beside(lambda: run_trails("heads", "accept", *options, env=env))


def _beside(work: Callable[[], Result]) -> Result:
    """Runs a command that has an event loop of its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


async def test_a_tenant_whose_administration_is_behind_accepts_no_key(
    neighbour: Caller, agent: Caller, file: Path, table: Table, started: Start
) -> None:
    """A revocation may be among what is lost."""
    await keep(agent.ledger, file)
    await set_back(table, ADMINISTRATION, to=len(await table.rows(ADMINISTRATION)) - 2)
    ledger = await started()
    for caller in (agent, neighbour):
        with pytest.raises(TenantQuarantinedError, match="was seen before"):
            await caller.at(ledger).ask()


async def test_a_chain_that_is_gone_from_the_registry_is_told(
    neighbour: Caller, agent: Caller, file: Path, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    del neighbour
    await keep(agent.ledger, file)
    await set_back(table, to=-1)
    await table.admin.execute("ALTER TABLE trails.agents DISABLE TRIGGER USER")
    await table.admin.execute("DELETE FROM trails.agents WHERE agent_id = 'agent-1'")
    with caplog.at_level(logging.ERROR, "trails.heads"):
        await keep(agent.ledger, file)
    assert "default/agent-1: the chain was seen before and is not in the database" in caplog.text
    assert of_agent(file) == [7]


async def test_heads_that_a_client_kept_count_by_the_agents_name(
    neighbour: Caller, agent: Caller, file: Path, table: Table, started: Start
) -> None:
    row = (await table.rows())[7]
    file.write_text(f"# receipts\n7:{row['hash']} default/agent-1\n")
    await set_back(table, to=5)
    ledger = await started()
    with pytest.raises(QuarantinedError, match=SEEN_7):
        await agent.at(ledger).ask()
    assert json_of(await neighbour.at(ledger).ask())["decision"] == "allowed"
    await keep(ledger, file)
    assert heads.read(file).heads["default/agent-1"] == {7: row["hash"]}


async def test_what_one_tenant_accepts_another_has_not_accepted(
    neighbour: Caller, agent: Caller, file: Path, database: Database, started: Start
) -> None:
    """A bare name is that of agents of every tenant; whose record the line means, nobody knows."""
    tenant = UUID("00000000-0000-4000-8000-000000000002")
    await agent.ledger.create_tenant(tenant, "second", "Second")
    other = Caller(agent.ledger, agent.agent, tenant)
    await other.create()
    line = {7: "a" * 64}
    file.write_text(f"7:{'a' * 64} {agent.agent}\n")
    said = accept(database, file, "--tenant", "default", "--agent", agent.agent, "--reason", "Monday")
    assert (said.code, "default/agent-1" in said.out, "second/" in said.out) == (0, True, False), said.err
    assert agent.agent not in heads.read(file).heads
    assert heads.read(file).heads[f"second/{agent.agent}"] == line
    ledger = await started()
    assert json_of(await agent.at(ledger).ask())["decision"] == "allowed"
    with pytest.raises(QuarantinedError, match=SEEN_7):
        await other.at(ledger).ask()
    assert accept(database, file, "--tenant", "second", "--reason", "Monday").code == 0
    assert f"second/{agent.agent}" not in heads.read(file).heads
    assert json_of(await neighbour.at(ledger).ask())["decision"] == "allowed"


async def test_of_two_processes_one_writes_and_the_other_reads(
    agent: Caller, twin: Caller, file: Path
) -> None:
    await keep(agent.ledger, file)
    before = file.stat().st_mtime_ns
    await agent.ask("search")
    await keeper(twin.ledger, file).round()
    assert file.stat().st_mtime_ns == before, "it was written a moment ago"
    os.utime(file, (0, 0))
    with heads.held(file, wait_secs=0) as alone:
        assert alone
        await keeper(twin.ledger, file).round()
    assert file.stat().st_mtime == 0, "another process is writing it"
    assert of_agent(file) == [1]
    await keeper(twin.ledger, file).round()
    assert of_agent(file) == [3]
    await keeper(agent.ledger, file).round()
    assert agent.ledger._seen.kept == twin.ledger._seen.kept


async def test_a_file_that_is_gone_takes_nothing_with_it(agent: Caller, file: Path, table: Table) -> None:
    """Its disk was taken away, or somebody removed it before the database was set back."""
    await agent.ask("search")
    keeps = keeper(agent.ledger, file)
    await keeps.round(first=True)
    file.unlink()
    await set_back(table, to=1)
    await keeps.round()
    assert of_agent(file) == [3]
    assert agent.ledger.meter.heads.behind == 1


async def test_to_accept_nothing_makes_no_file(agent: Caller, database: Database, file: Path) -> None:
    """The disk is away for a moment: an empty file in its place would tell a service to forget."""
    await agent.ask("search")
    assert "nothing to accept" in accept(database, file, "--reason", "none").out
    assert not file.exists()


async def test_a_file_from_a_time_to_come_is_written_all_the_same(agent: Caller, file: Path) -> None:
    """The clock was set back, here or on the machine that keeps it."""
    keeps = keeper(agent.ledger, file)
    await keeps.round(first=True)
    os.utime(file, (2**32, 2**32))
    await agent.ask("search")
    await keeps.round()
    assert of_agent(file) == [3]


async def test_what_cannot_be_written_is_told_and_tried_again(
    agent: Caller, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "elsewhere"
    with pytest.raises(StartupError, match=r"TRAILS_HEADS_FILE .*: No such file or directory"):
        async with agent.ledger.keep_heads(folder / "heads", 60):
            pass
    folder.mkdir()
    async with agent.ledger.keep_heads(folder / "heads", 0.01):
        folder.rename(tmp_path / "away")
        await _until(lambda: agent.ledger.meter.heads.failures > 0)
        assert "heads were not written to" in caplog.text
        (tmp_path / "away").rename(folder)
        await agent.ask("search")
        await _until(lambda: of_agent(folder / "heads") == [3])


async def test_a_defect_is_told_counted_and_tried_again(
    agent: Caller, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meter, refused = agent.ledger.meter.heads, agent.ledger._seen.refused
    async with agent.ledger.keep_heads(file, 0.01):
        refused[UUID(int=0)] = None  # type: ignore[assignment]  # what no round can work with
        await _until(lambda: meter.failures > 1)
        assert "by a defect" in caplog.text
        assert "TypeError" in caplog.text
        refused.clear()
        await agent.ask("search")
        await _until(lambda: of_agent(file) == [3])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("7:abc default/agent-1", "line 1 is not SEQ:HASH"),
        (f"7:{'a' * 64}", "line 1 is not SEQ:HASH and the name of a chain"),
        (f"7:{'a' * 64} x\n# between\n7:{'b' * 64} x", "line 3 contradicts an earlier one"),
    ],
)
async def test_a_file_that_is_no_file_of_heads_is_not_overwritten(
    agent: Caller, file: Path, text: str, why: str
) -> None:
    file.write_text(text)
    with pytest.raises(StartupError, match=why):
        async with agent.ledger.keep_heads(file, 60):
            pass
    assert file.read_text() == text


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
