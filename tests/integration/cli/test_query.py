"""The auditors' cookbook: each answer follows from what was posted, computed a second time in Python."""

from __future__ import annotations

import asyncio
import csv
import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor
from rich.cells import cell_len

from app.audit.ask import asking
from app.chain.record import Draft
from app.cli.rows import csv_line, json_line
from app.errors import TooManyRequestsError, TrailsError
from app.guard.kinds import TRACE
from app.ledger import Ledger
from app.ledger.post import Entry
from app.principal import Permission
from db import migrate
from db.cookbook import Parameter, Recipe, read_recipe, recipes
from db.pool import create_pool
from db.schema import DEFAULT_TENANT_ID
from tests.integration.cli.conftest import Trail
from tests.support.cli import Result, run_trails
from tests.support.cookbook_answers import ANSWERS, Asked, Row
from tests.support.cookbook_world import (
    DAY,
    FIRST_DAY,
    NESTED,
    World,
    day,
    moment,
    tell,
)
from tests.support.ledgers import MASTER_KEY, Caller, SetClock
from tests.support.postgres import Database, Server, fresh_database

ROOT = Path(__file__).resolve().parents[3]
SECOND_TENANT = UUID(int=77)


class Told(msgspec.Struct, frozen=True):
    """The database of the story, and its account."""

    database: Database
    world: World
    env: dict[str, str]

    def query(self, *arguments: object, url: str | None = None) -> Result:
        env = {**self.env, "TRAILS_DATABASE_URL": url or self.database.admin_url}
        return run_trails("query", *arguments, env=env)

    def rows(self, *arguments: object, url: str | None = None) -> list[Row]:
        result = self.query(*arguments, "--format", "json", url=url)
        assert result.code == 0, result.err
        return [json.loads(line) for line in result.out.splitlines()]


@pytest.fixture(scope="module")
def told(
    postgres: Server, template: NoopExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    """The story, told once for all tests that only ask."""
    with fresh_database(postgres, template.template_dbname) as database:
        world = asyncio.run(_told(database.app_url))
        folder = tmp_path_factory.mktemp("query")
        yield Told(database, world, {"TRAILS_DATA_DIR": str(folder / "data")})


async def _told(url: str) -> World:
    async with await create_pool(url, max_size=2) as pool:
        clock = SetClock()
        ledger = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
        world = World(ledger, clock)
        await tell(world)
        await ledger.close()
    return world


# --- the answers --------------------------------------------------------------------------------------

SECOND_DAY = FIRST_DAY + DAY
NARROWED = {
    "all": Asked(),
    "since": Asked(since=SECOND_DAY),
    "until": Asked(until=SECOND_DAY),
    "one_day": Asked(since=SECOND_DAY, until=SECOND_DAY + DAY),
    "one_agent": Asked(agent="buyer"),
    "another_agent": Asked(agent="scribe"),
}
EMPTY = {"damaged_records"}
NO_CLOCK = {"waiting_approvals": ("waited_secs",)}
"""Columns that depend on when the question is asked."""


def test_every_question_of_the_cookbook_is_asked_here() -> None:
    assert ANSWERS.keys() == recipes().keys()


@pytest.mark.parametrize("narrowed", NARROWED)
@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_what_follows_from_what_was_posted(told: Told, name: str, narrowed: str) -> None:
    asked = NARROWED[narrowed]
    rows = told.rows(name, *asked.parameters(name))
    for row in rows:
        for column in NO_CLOCK.get(name, ()):
            assert row.pop(column) >= 0
    expected = ANSWERS[name](told.world, asked)
    assert rows == expected
    assert [list(row) for row in rows] == [list(row) for row in expected], "columns in their order"
    assert expected or narrowed != "all" or name in EMPTY, "the story has an example of it"


def test_what_is_explained_is_what_is_answered(told: Told) -> None:
    for name, recipe in recipes().items():
        result = told.query(name, "--format", "csv")
        assert result.out.splitlines()[0].split(",") == [column.name for column in recipe.columns], name


def test_a_call_that_was_seen_from_both_ends_counts_once(told: Told) -> None:
    assert len(told.rows("path_above_failures", f"--param=session={NESTED.upper()}")) == 1


def test_further_parameters_narrow(told: Told) -> None:
    tools = {row["tool"] for row in told.rows("failed_calls", "--param", "tool=fetch")}
    assert tools == {"fetch"}
    assert [row["tool"] for row in told.rows("corrected_failures", "--param", "tool=search")] == ["search"]
    assert len(told.rows("tokens_and_cost_by_session", "--param", "most=2")) == 2
    assert len(told.rows("before_harm", "--param", "steps=1")) == 2
    assert told.rows("agents_near_limits", "--param", "percent=80.5") == []
    assert [row["agent_id"] for row in told.rows("agents_near_limits", "--param", "percent=1")] == [
        "eager",
        "buyer",
    ]
    assert told.rows("sessions_without_output", "--param", "quiet=2147483647") == []


def test_times_are_taken_as_days_moments_and_how_long_ago(told: Told) -> None:
    everything = told.rows("failed_calls")
    for since in ("2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "99999d"):
        assert told.rows("failed_calls", "--param", f"since={since}") == everything
    assert told.rows("failed_calls", "--param", "since=1m") == []


# --- who may see what --------------------------------------------------------------------------------


def test_every_login_asks_about_one_tenant_with_the_services_role(told: Told) -> None:
    assert told.rows("failed_calls", url=told.database.app_url) == told.rows("failed_calls")
    assert told.rows("failed_calls", "--tenant", "default") == told.rows("failed_calls")


def test_another_tenant_is_another_trail(database: Database) -> None:
    asyncio.run(_two_tenants(database.app_url))
    env = {"TRAILS_DATABASE_URL": database.admin_url}
    answers = [
        run_trails("query", "failed_calls", "--format", "csv", *tenant, env=env).out.splitlines()[1:]
        for tenant in ((), ("--tenant", "second"))
    ]
    assert [[line.split(",")[1:4] for line in answer] for answer in answers] == [
        [["one", "fetch", "mine"]],
        [["one", "fetch", "theirs"]],
    ]
    unknown = run_trails("query", "failed_calls", "--tenant", "third", env=env)
    assert (unknown.code, unknown.out) == (1, "")
    assert "no tenant third" in unknown.err


def test_of_several_approvals_each_is_a_persons(
    postgres: Server, template: NoopExecutor, tmp_path: Path
) -> None:
    with fresh_database(postgres, template.template_dbname) as database:
        asyncio.run(_approved_by_two(database.app_url))
        told = Told(database, World(None, SetClock()), {"TRAILS_DATA_DIR": str(tmp_path)})  # type: ignore[arg-type]
        rows = told.rows("approvals_by_person")
    counted = {row["person"]: (row["approved"], row["approved_in_part"]) for row in rows}
    assert counted == {"bob": (1, 0), "alice": (0, 2)}


async def _approved_by_two(url: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        agent = Caller(ledger, "one")
        await agent.create(tools={"pay": {"cost": 2, "requires_approval": True, "approvers": 2}})
        for number in range(2):
            asked = await agent.ask("pay", number)
            await agent.approve(asked.action_id, by="alice")
        await agent.approve(asked.action_id, by="bob")
        await ledger.close()


async def _two_tenants(url: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        await ledger.create_tenant(SECOND_TENANT, "second", "Second")
        for tenant, error in ((DEFAULT_TENANT_ID, "mine"), (SECOND_TENANT, "theirs")):
            agent = Caller(ledger, "one", tenant)
            await agent.observe()
            await post(agent, call("fetch", {"status": "failed", "error": error}))
        await ledger.close()


def call(name: str, outputs: dict[str, Any]) -> dict[str, Any]:
    return {"node_id": str(uuid4()), "node_type": "TOOL_CALL", "name": name, "outputs": outputs}


async def post(agent: Caller, *nodes: dict[str, Any]) -> None:
    payload: Any = {"session_id": str(uuid4()), "total_nodes": len(nodes), "trace_tree": [*nodes]}
    entry = Entry(Draft(kind=TRACE, payload=payload, actor=agent.agent))
    [receipt] = await agent.ledger.post(agent.may(Permission.POST), [entry])
    assert not isinstance(receipt, Exception), receipt


def test_a_login_that_is_not_the_services_sees_what_row_security_gives_it(told: Told) -> None:
    name = f"reader_{uuid4().hex[:8]}"
    with psycopg.connect(told.database.admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'reads' IN ROLE trails_auditor".encode())
        try:
            url = migrate.with_login(told.database.admin_url, name, "reads")
            assert told.rows("failed_calls", url=url) == []
            refused = told.query("failed_calls", "--tenant", "default", url=url)
            assert refused.code == 1
            assert "leave --tenant out" in refused.err
        finally:
            admin.execute(f"DROP ROLE {name}".encode())


async def asked(url: str, sql: str, *values: object, seconds: int = 60) -> list[tuple[Any, ...]]:
    """A statement of one's own, asked as the cookbook's are."""
    recipe = Recipe("own", "?", "", (), (), sql, sql)
    async with asking(url, recipe, values, tenant=None, timeout_secs=seconds) as answer:
        return [tuple(row) async for row in answer.rows]


async def test_a_query_runs_as_the_services_role_and_cannot_write(told: Told) -> None:
    url = told.database.admin_url
    [[role, read_only]] = await asked(
        url, "SELECT current_user::text, current_setting('transaction_read_only')"
    )
    assert (role, read_only) == ("trails_app", "on")
    with pytest.raises(TrailsError) as refused:
        await asked(url, "INSERT INTO trails.tenants SELECT * FROM trails.tenants RETURNING tenant_id")
    assert isinstance(refused.value.__cause__, asyncpg.ReadOnlySQLTransactionError)


async def test_a_query_that_takes_too_long_is_stopped_and_told(told: Told) -> None:
    with pytest.raises(TooManyRequestsError, match="longer than 1 second"):
        await asked(told.database.admin_url, "SELECT pg_sleep(50)::text", seconds=1)


def test_a_parameter_is_never_part_of_the_sql(told: Told) -> None:
    for agent in ("x' OR '1'='1", "buyer'; DROP TABLE trails.tenants; --", "$1", ":since", "%"):
        assert told.rows("failed_calls", "--param", f"agent={agent}") == []
    assert told.rows("failed_calls", "--param", "agent=buyer") != []


# --- what is printed ---------------------------------------------------------------------------------

EVIL = [
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@x",
    "\ttab",
    "\rreturn",
    "\x1b[2Jclear",
    "a\u202eb",
    'quo"te,\nline',
]


@pytest.fixture
def evil(database: Database) -> dict[str, str]:
    """The environment of a trail whose tools have such names."""
    asyncio.run(_evil(database.app_url))
    return {"TRAILS_DATABASE_URL": database.admin_url}


async def _evil(url: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        agent = Caller(ledger, "evil")
        await agent.observe()
        await post(agent, *(call(name, {"status": "failed", "error": name}) for name in EVIL))
        await ledger.close()


def test_h21_nothing_that_an_agent_wrote_steers_a_terminal(evil: dict[str, str]) -> None:
    for format_ in ("table", "csv", "json"):
        out = run_trails("query", "failed_calls", "--format", format_, env=evil).out
        assert not [char for char in out if char != "\n" and not char.isprintable()], format_
        assert "\u202e" not in out
        assert "\\u001b[2Jclear" in out


def test_csv_is_read_back_and_no_cell_is_a_formula(evil: dict[str, str]) -> None:
    out = run_trails("query", "failed_calls", "--format", "csv", env=evil).out
    header, *rows = csv.reader(io.StringIO(out))
    tools = [row[header.index("tool")] for row in rows]
    assert len(tools) == len(EVIL)
    assert not [tool for tool in tools if tool.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert tools[:3] == ["'=cmd|' /C calc'!A0", "'+1", "'-1"]
    assert tools[-1] == 'quo"te,\\nline'


def test_json_gives_each_value_back(evil: dict[str, str]) -> None:
    out = run_trails("query", "failed_calls", "--format", "json", env=evil).out
    assert [json.loads(line)["tool"] for line in out.splitlines()] == EVIL


def test_numbers_keep_their_digits_and_columns_of_json_their_form() -> None:
    columns = [
        ("n", "numeric"),
        ("big", "int8"),
        ("j", "jsonb"),
        ("l", "text[]"),
        ("w", "interval"),
        ("z", "text"),
    ]
    row = [
        Decimal("0.10"),
        2**62,
        '{"a": 1.50, "b": null}',
        ["x", "y"],
        timedelta(hours=1, microseconds=5),
        None,
    ]
    assert json_line(columns, row) == (
        '{"n":0.10,"big":4611686018427387904,"j":{"a": 1.50, "b": null},"l":["x","y"],"w":3600.000005,'
        '"z":null}'
    )
    assert csv_line(row) == '0.10,4611686018427387904,"{""a"": 1.50, ""b"": null}","x, y",3600.000005,\n'
    assert csv_line([-5, Decimal("-0.5"), "-5", ["=1"]]) == "-5,-0.5,'-5,'=1\n"


def test_a_limit_that_cuts_says_so_and_csv_has_all(told: Told) -> None:
    cut = told.query("failed_calls", "--limit", "1")
    assert len(cut.out.splitlines()) == 2
    assert "only the first 1 rows" in cut.err
    every = told.query("failed_calls", "--format", "csv")
    assert (len(every.out.splitlines()) - 1, every.err) == (len(told.world.failed()), "")
    exact = told.query("failed_calls", "--limit", len(told.world.failed()))
    assert exact.err == ""


def test_no_rows_is_an_answer(told: Told) -> None:
    found = told.query("failed_calls", "--param", "agent=nobody")
    assert (found.code, found.out, found.err) == (0, "", "trails: failed_calls: no rows\n")


# --- what it teaches ---------------------------------------------------------------------------------


def test_without_a_name_it_lists_all_questions_and_needs_no_database() -> None:
    listing = run_trails("query")
    assert listing.code == 0
    for name, recipe in recipes().items():
        assert name in listing.out
        assert recipe.question.split()[-1] in listing.out


def test_help_explains_the_command_or_the_question() -> None:
    assert "trails query failed_calls --param since=7d" in run_trails("query", "--help").out
    for name, recipe in recipes().items():
        explained = " ".join(run_trails("query", name, "--help").out.split())
        for told_of in (*recipe.parameters, *recipe.columns):
            assert f"{told_of.name} {told_of.meaning}" in explained


def test_each_question_is_one_line_of_the_list() -> None:
    lines = run_trails("query").out.splitlines()
    listed = {line.split()[0]: line for line in lines[: len(recipes())]}
    assert listed.keys() == recipes().keys()
    assert all(listed[name].endswith(recipe.question) for name, recipe in recipes().items())


def test_help_tells_types_and_defaults() -> None:
    explained = " ".join(run_trails("query", "tokens_and_cost_by_session", "--help").out.split())
    assert "(timestamptz: a day, a time with its zone" in explained
    assert "default: none)" in explained
    assert "(integer: a whole number; default: 100)" in explained


# --- the query to copy -------------------------------------------------------------------------------


def psql(url: str, sql: str, options: str = "") -> tuple[list[str], list[list[str]]]:
    """Header and rows as psql answers a script, in a session that is set up as badly as can be."""
    program = "/usr/lib/postgresql/15/bin/psql"
    found = program if os.path.exists(program) else shutil.which("psql")  # noqa: PTH110  nothing to join
    if found is None:
        pytest.skip("there is no psql on this machine")
    done = subprocess.run(
        [found, "-X", "-q", "--csv", "-v", "ON_ERROR_STOP=1", url],
        input=sql,
        env={**os.environ, "PGOPTIONS": f"-c search_path=pg_catalog -c TimeZone=Asia/Kathmandu {options}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = csv.reader(io.StringIO(done.stdout))
    return header, [list(map(told_alike, row)) for row in rows]


def told_alike(cell: str) -> str:
    """A cell in one form, whoever wrote it: times, and lists of names."""
    if cell[:1] == "{" and '"' not in cell:
        return cell[1:-1].replace(",", ", ")
    try:
        return str(datetime.fromisoformat(cell).timestamp()) if len(cell) > len("2026-01-01") else cell
    except ValueError:
        return cell


SHOWN_BY_PSQL = {
    "all": [],
    "narrowed": [
        f"since={day(FIRST_DAY + DAY)}",
        "until=99m",
        "agent=buyer",
        "most=3",
        "steps=2",
        "percent=1",
    ],
}


@pytest.mark.parametrize("narrowed", SHOWN_BY_PSQL)
def test_the_sql_that_is_shown_runs_in_psql_and_answers_the_same(told: Told, narrowed: str) -> None:
    for name, recipe in recipes().items():
        given = [
            one for one in SHOWN_BY_PSQL[narrowed] if recipe.parameter(one.partition("=")[0]) is not None
        ]
        params = [f"--param={one}" for one in given]
        header, rows = psql(told.database.admin_url, run_trails("query", name, "--sql", *params).out)
        expected = told.query(name, *params, "--format", "csv").out
        titles, *lines = csv.reader(io.StringIO(expected))
        assert header == titles
        for column in NO_CLOCK.get(name, ()):
            for row in (*rows, *lines):
                row[header.index(column)] = ""
        assert rows == [list(map(told_alike, line)) for line in lines], name


def test_the_services_login_is_told_how_to_name_its_tenant(told: Told) -> None:
    sql = run_trails("query", "failed_calls", "--sql").out
    assert psql(told.database.app_url, sql)[1] == []
    statements = ("BEGIN", "SELECT set_config")
    lines = [line.removeprefix("--").strip() for line in sql.splitlines() if line.startswith("--   ")]
    named = [line for line in lines if line.startswith(statements)]
    assert len(named) == 3
    quiet = "\n".join(["\\o /dev/null", *named, "\\o", sql, "COMMIT;"])
    assert psql(told.database.app_url, quiet) == psql(told.database.admin_url, sql)


@pytest.mark.parametrize("conforming", ["on", "off"])
@pytest.mark.parametrize(
    "agent",
    ["x' OR '1'='1", "it''s", "\\", "\\' OR true --", "a\nb", "\x1b[2J", "\u202eé😀", ":agent", "$1", ""],
)
def test_no_value_escapes_its_literal(told: Told, agent: str, conforming: str) -> None:
    shown = run_trails("query", "failed_calls", "--sql", "--param", f"agent={agent}").out
    assert not [char for char in shown if char != "\n" and not " " <= char <= "~"]
    options = f"-c standard_conforming_strings={conforming}"
    assert psql(told.database.admin_url, shown, options)[1] == []
    [line] = [line for line in shown.splitlines() if line.startswith("--   agent = ")]
    literal = line.partition(" = ")[2]
    assert psql(told.database.admin_url, f"SELECT {literal} || '.' AS it", options) == (
        ["it"],
        [[f"{agent}."]],
    )


def test_how_long_ago_counts_from_when_the_sql_is_run() -> None:
    for text, interval in (("7d", "168 hours"), ("12h", "12 hours"), ("90m", "90 minutes")):
        shown = run_trails("query", "failed_calls", "--sql", "--param", f"since={text}").out
        assert f"recorded_at >= coalesce((now() - interval '{interval}'), '-infinity')" in shown


def test_the_sql_explains_itself_and_needs_no_database() -> None:
    for name, recipe in recipes().items():
        shown = run_trails("query", name, "--sql")
        assert shown.code == 0
        assert shown.out.startswith(recipe.comment)
    wrong = run_trails("query", "orphans", "--sql", "--param", "session=1")
    assert (wrong.code, wrong.out) == (2, "")


# --- on a terminal -----------------------------------------------------------------------------------


def on_a_terminal(told: Told, columns: int, *arguments: str) -> list[str]:
    """What a terminal of so many columns shows of ``trails query``, without its colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    env = {**kept, **told.env, "TRAILS_DATABASE_URL": told.database.admin_url, "TERM": "xterm"}
    command = [sys.executable, "-m", "app.cli", "query", *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        parts = []
        while True:
            try:
                parts.append(os.read(ours, 65_536))
            except OSError:  # the other end is closed: EIO
                break
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", b"".join(parts).decode()).replace("\r\n", "\n").splitlines()


def test_a_table_fits_its_terminal_and_is_whole_in_a_pipe(told: Told) -> None:
    shown = on_a_terminal(told, 80, "failed_calls")
    assert len(shown) == 1 + len(told.world.failed())
    assert max(map(cell_len, shown)) <= 80
    assert any("…" in line for line in shown)
    piped = told.query("failed_calls").out
    assert "…" not in piped
    assert all(one.id in piped and moment(one.at) in piped for one in told.world.failed())


def test_a_wide_answer_stands_row_below_row_on_a_narrow_terminal(told: Told) -> None:
    shown = on_a_terminal(told, 60, "before_harm")
    rows = len(told.rows("before_harm"))
    assert len(shown) == rows * (1 + len(recipes()["before_harm"].columns))
    assert max(map(cell_len, shown)) <= 60


def test_the_list_is_one_line_a_question_on_a_terminal_too(told: Told) -> None:
    shown = on_a_terminal(told, 60)
    assert max(map(cell_len, shown[: len(recipes())])) == 60
    assert {line.split()[0] for line in shown[: len(recipes())]} == recipes().keys()


# --- questions that cannot be asked ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["faild_calls"], "did you mean failed_calls"),
        (["xyz"], "trails query lists all"),
        (
            ["failed_calls", "--param", "sinse=7d"],
            "did you mean since? Its parameters: since, until, agent, tool",
        ),
        (["failed_calls", "--param", "x=1"], "Its parameters: since, until, agent, tool"),
        (["failed_calls", "--param", "since"], "no NAME=VALUE"),
        (["failed_calls", "--param", "since=7d", "--param", "since=8d"], "given twice"),
        (["failed_calls", "--param", "since=yesterday"], "how long ago"),
        (["failed_calls", "--param", "since=2026-02-30"], "how long ago"),
        (["failed_calls", "--param", "since=2026-01-01T00:00:00"], "with its zone"),
        (["before_harm", "--param", "steps=-1"], "whole number from 0"),
        (["before_harm", "--param", "steps=1.5"], "whole number from 0"),
        (["before_harm", "--param", "steps=2147483648"], "whole number from 0"),
        (["agents_near_limits", "--param", "percent=many"], "a number such as 80"),
        (["orphans", "--param", "session=1"], "a UUID such as"),
        (["failed_calls", "--format", "xml"], "xml"),
        (["failed_calls", "--limit", "0"], "limit"),
    ],
)
def test_a_question_that_cannot_be_read_says_what_can(arguments: list[str], said: str) -> None:
    result = run_trails("query", *arguments)
    assert (result.code, result.out) == (2, "")
    assert said in " ".join(result.err.split())


def test_trouble_ends_with_one_sentence(told: Told) -> None:
    away = told.query("failed_calls", url="postgresql://nobody@127.0.0.1:1/none")
    assert (away.code, away.out, len(away.err.splitlines())) == (1, "", 1)
    overflow = told.query("before_harm", "--param", "steps=2147483647")
    assert overflow.code == 1
    assert "cannot compute with these parameters" in overflow.err


def test_an_empty_database_says_what_to_do(empty_database: Database) -> None:
    result = run_trails("query", "failed_calls", env={"TRAILS_DATABASE_URL": empty_database.admin_url})
    assert result.code == 1
    assert "trails migrate" in result.err


# --- the files ---------------------------------------------------------------------------------------


def test_damage_is_found_by_sql(trail: Trail) -> None:
    assert trail.trails("query", "damaged_records").out == ""
    trail.tamper(
        "UPDATE trails.agent_audit_trails SET actor = 'somebody' WHERE agent_id = 'scout' AND seq = 4",
        drop_checks=True,
    )
    [line] = trail.trails("query", "damaged_records", "--format", "json").out.splitlines()
    assert json.loads(line)["seq"] == 4


@pytest.mark.parametrize(
    "text",
    [
        "-- Q?\n--\n-- Parameters:\n--   a  text  -  A.\nSELECT 1;",
        "-- Q?\nSELECT :a;",
        "-- Q?\n--\n-- Parameters:\n--   a  money  -  A.\nSELECT :a;",
        "-- Q?\n--\n-- Parameters:\n--   a  text\nSELECT :a;",
    ],
)
def test_a_file_that_explains_itself_wrongly_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"own\.sql"):
        read_recipe("own", text)


def test_a_cast_is_no_parameter() -> None:
    recipe = read_recipe(
        "own", "-- Q?\n--\n-- Parameters:\n--   a  text  b  A.\nSELECT :a::text, '1'::int;\n"
    )
    assert recipe.statement == "SELECT $1::text, '1'::int"
    assert recipe.parameters == (Parameter("a", "text", "b", "A."),)


def test_the_wheel_carries_the_cookbook_and_its_types(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"app/py.typed", "db/py.typed"} <= set(names)
    assert {f"db/queries/{name}.sql" for name in recipes()} <= set(names)
    assert "db/statements/ask.sql" in names


@pytest.mark.parametrize(
    ("format_", "where", "said"), [("csv", "pipe", ""), ("json", "full", "cannot be written")]
)
def test_a_reader_that_goes_away_is_not_the_databases_trouble(
    told: Told, format_: str, where: str, said: str
) -> None:
    """A closed pipe ends quietly, a full disk is told as one."""
    command = [sys.executable, "-m", "app.cli", "query", "tool_reliability", "--format", format_]
    with Path("/dev/full").open("w") as full:
        running = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], **told.env, "TRAILS_DATABASE_URL": told.database.admin_url},
            stdout=full if where == "full" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if running.stdout is not None:
            running.stdout.close()
        assert running.stderr is not None
        with running.stderr:
            err = running.stderr.read()
        assert running.wait() == 1
    assert "database" not in err
    assert (said in err) if said else (err == "")
