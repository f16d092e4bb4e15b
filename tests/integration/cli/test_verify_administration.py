"""``trails verify`` on keys, tenants and logins: what their tables say must be what is on record.

A superuser changes each table past the service. The service believes none of it, and verification names it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

import db.ledger
from app.chain.link import seal_all
from app.chain.record import GENESIS, Draft
from app.cli.prepare import app_password
from app.errors import TrailsError, UnauthorizedError
from app.ledger import Ledger
from app.ledger.chain import ChainId
from app.ledger.clock import system_clock
from app.ledger.feed.batches import Wanted
from app.ledger.mirror import registry_row, row_of
from app.ledger.tenancy.administration import NewKey, NewTenant
from app.ledger.webhooks.hooks import NewWebhook
from app.principal import Permission, Principal, Role, grant
from app.settings import Secrets
from db import sql_logins
from db.pool import create_pool
from db.sql_logins import SqlLogin
from tests.integration.cli.conftest import TRAIL, Trail
from tests.support.cli import Result, run_trails
from tests.support.ledgers import MASTER_KEY, Caller
from tests.support.postgres import APP_PASSWORD, Server, fresh_database

TABLES = (
    "agents",
    "api_keys",
    "api_key_revocations",
    "tenant_suspensions",
    "sql_logins",
    "signing_keys",
    "tenants",
    "webhooks",
)
KILLED = 130
APPEND_ONLY = ("refuse_change_statement", "refuse_change_row")
KEYS = "trails.api_keys"
REVOCATIONS = "trails.api_key_revocations"
SUSPENSIONS = "trails.tenant_suspensions"
ACME = "tenant_id = (SELECT tenant_id FROM trails.tenants WHERE slug = 'acme')"


class World(msgspec.Struct):
    """The tenant acme: keys ``Ada``, ``kept`` and ``gone`` (revoked), suspended and resumed, rotated once.

    Of its two webhooks one was deleted.
    """

    tenant: UUID
    tokens: dict[str, str]
    ids: dict[str, str]
    login: str


@pytest.fixture(scope="module")
def administered(postgres: Server, filled: str) -> Iterator[tuple[str, World]]:
    """The name of a database with the tenant acme beside the two agents, and what is in it."""
    with fresh_database(postgres, filled) as database:
        world = asyncio.run(_administer(database.app_url))
        made = SqlLogin(world.login, "audit", datetime.now(UTC))
        sql_logins.create(database.admin_url, made, world.tenant, secrets.token_urlsafe(24))
        asyncio.run(_record(database.app_url, world.tenant, _login_made(made)))
        yield database.name, world
        with psycopg.connect(database.admin_url, autocommit=True) as admin:
            admin.execute(f"DROP OWNED BY {world.login}".encode())
            admin.execute(f"DROP ROLE {world.login}".encode())


@pytest.fixture
def acme(postgres: Server, administered: tuple[str, World], tmp_path: Any) -> Iterator[tuple[Trail, World]]:
    """A database of this test alone."""
    name, world = administered
    with fresh_database(postgres, name) as database:
        yield Trail(database, tmp_path), world


async def _administer(url: str) -> World:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        administration = ledger.administration
        row, first = await administration.create_tenant(NewTenant("acme", "Acme", "Ada"), "root")
        operator = Principal(row.tenant_id, Role.OPERATOR, "Ada")
        issuing, revoking = (grant(operator, one) for one in (Permission.ISSUE_KEY, Permission.REVOKE_KEY))
        ends = datetime.now(UTC) + timedelta(days=9)
        keys = {"Ada": first}
        for name in ("kept", "gone"):
            keys[name] = await administration.issue_key(issuing, NewKey(Role.WRITER, name, None, ends))
        await administration.revoke_key(revoking, keys["gone"].key.key_id)
        for suspended in (True, False):
            await administration.suspend_tenant(row.tenant_id, "root", "unpaid", suspended=suspended)
        bot = Caller(ledger, "bot", row.tenant_id)
        await bot.observe()
        await administration.rotate_signing(row.tenant_id, "root")
        setting = grant(operator, Permission.SET_WEBHOOKS)
        hooks = []
        for kinds in (("event",), None):
            wanted = NewWebhook("tell", "https://example.com/told?secret", Wanted(kinds, ("bot",)))
            hooks.append(str((await ledger.webhooks.create(setting, wanted, ()))[0]["webhook_id"]))
        await ledger.webhooks.delete(setting, hooks[1])
        await ledger.close()
    return World(
        row.tenant_id,
        {name: key.token for name, key in keys.items()},
        {**{name: key.key.key_id for name, key in keys.items()}, "hook": hooks[0], "ended": hooks[1]},
        sql_logins.new_login(),
    )


async def _tell_of(ledger: Ledger, chain: ChainId) -> None:
    """Puts a chain on record."""
    told = {"agent_id": chain.agent_id, "log_uuid": str(chain.log_uuid), "guarded": chain.guarded}
    act: Any = {"act": "agents_created", "agents": [told]}
    await ledger.administration.record(chain.tenant_id, "root", act)


async def _record(url: str, tenant: UUID, payload: dict[str, Any]) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        await ledger.administration.record(tenant, "root", payload)
        await ledger.close()


def _login_made(login: SqlLogin) -> dict[str, Any]:
    at = login.created_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"act": "sql_login_created", "login": login.login, "name": login.name, "created_at": at}


def meddle(trail: Trail, *statements: str) -> None:
    """A superuser's statements with the triggers off, which are switched on again afterwards."""
    with psycopg.connect(trail.database.admin_url) as connection:
        for table in TABLES:
            connection.execute(f"ALTER TABLE trails.{table} DISABLE TRIGGER ALL".encode())
        for statement in statements:
            connection.execute(statement.encode())
        for table in TABLES:
            for trigger in APPEND_ONLY:
                connection.execute(f"ALTER TABLE trails.{table} ENABLE ALWAYS TRIGGER {trigger}".encode())


def reasons(result: Result) -> list[str]:
    """What verification says of the tenant's administration."""
    found = result.json["findings"]
    assert {finding["what"] for finding in found} <= {"administration of acme"}, found
    return [finding["reason"] for finding in found]


def revived(trail: Trail, world: World, name: str) -> bool:
    """Whether a service that starts now takes the key."""

    async def ask() -> bool:
        async with await create_pool(trail.database.app_url, max_size=2) as pool:
            ledger = await Ledger.open(pool, master_key=MASTER_KEY)
            try:
                await ledger.caller(world.tokens[name].encode())
            except UnauthorizedError:
                return False
            finally:
                await ledger.close()
            return True

    return asyncio.run(ask())


def test_what_the_service_wrote_is_what_it_recorded(acme: tuple[Trail, World]) -> None:
    trail, world = acme
    result = trail.verify()
    assert (result.code, result.json["findings"], result.json["notes"]) == (0, [], [])
    assert [revived(trail, world, name) for name in ("Ada", "kept", "gone")] == [True, True, False]


def key(name: str) -> str:
    return f"key_id = '{{{name}}}'"


PLANTED_KEY = f"""
    INSERT INTO {KEYS} SELECT tenant_id, repeat('a', 16), role, agent_id, 'planted', secret_hash, seal,
        created_at, expires_at FROM {KEYS} WHERE {key("kept")}"""
PLANTED_REVOCATION = f"""
    INSERT INTO {REVOCATIONS} SELECT tenant_id, key_id, created_at FROM {KEYS} WHERE {key("kept")}"""
PLANTED_SUSPENSION = f"""
    INSERT INTO {SUSPENSIONS} SELECT tenant_id, now(), true FROM trails.tenants WHERE {ACME}"""
PLANTED_LOGIN = f"""
    INSERT INTO trails.sql_logins
    SELECT 'trails_auditor_ffffffffffff', tenant_id, 'spy', now() FROM trails.tenants WHERE {ACME}"""
PLANTED_WEBHOOK = """
    INSERT INTO trails.webhooks
    SELECT tenant_id, repeat('a', 16), 'planted', kinds, agents, sealed, created_at
      FROM trails.webhooks WHERE webhook_id = '{hook}'"""
ELSEWHERE = """
    UPDATE trails.webhooks AS w SET sealed = o.sealed FROM trails.webhooks AS o
     WHERE w.webhook_id = '{hook}' AND o.webhook_id = '{ended}'"""
CHAIN_REMOVED = f"""
    ALTER TABLE {TRAIL} DISABLE TRIGGER ALL;
    DELETE FROM {TRAIL} WHERE agent_id = 'bot';
    DELETE FROM trails.agents WHERE agent_id = 'bot';
    ALTER TABLE {TRAIL}
        ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row,
        ENABLE ALWAYS TRIGGER check_append, ENABLE ALWAYS TRIGGER index_sendings,
        ENABLE ALWAYS TRIGGER keep_waiting"""
ANOTHER_CHAIN = (
    r"the chain of agent bot is not the one on record \(seq \d+\): \S+ \(guarded\) in the registry, "
    r"\S+ \(observed\) on record"
)


def kept(assignment: str) -> str:
    return f"UPDATE {KEYS} SET {assignment} WHERE {key('kept')}"


CHANGES: dict[str, tuple[str, str]] = {
    # What a superuser does, and what verification says as a pattern; {name} is the id of that key.
    "a key that was never issued": (
        PLANTED_KEY,
        r"API key a{{16}} \(planted\) is in its table, and no record says that it was issued",
    ),
    "a key removed": (
        f"DELETE FROM {KEYS} WHERE {key('kept')}",
        r"API key {kept} \(kept\) was issued on record, and its row is gone",
    ),
    "a key of another role": (
        kept("role = 'operator'"),
        r"API key {kept} \(kept\) differs from its record: role",
    ),
    "a key of an agent": (
        kept("role = 'agent', agent_id = 'bot'"),
        r"API key {kept} \(kept\) differs from its record: role, agent_id",
    ),
    "a key of another name": (
        kept("name = 'Ada 2'"),
        r"API key {kept} \(kept\) differs from its record: name",
    ),
    "a key that never expires": (
        kept("expires_at = NULL"),
        r"API key {kept} \(kept\) differs from its record: expires_at",
    ),
    "a key without an end in time": (
        kept("expires_at = 'infinity'"),
        r"API key {kept} \(kept\) differs from its record: expires_at",
    ),
    "a key of another time": (
        kept("created_at = created_at - interval '1 microsecond'"),
        r"API key {kept} \(kept\) differs from its record: created_at",
    ),
    "a revocation removed": (
        f"DELETE FROM {REVOCATIONS}",
        "API key {gone} was revoked on record, and the row that says so is gone",
    ),
    "a revocation planted": (
        PLANTED_REVOCATION,
        "API key {kept} is revoked in its table, and no record says so",
    ),
    "a revocation of another time": (
        f"UPDATE {REVOCATIONS} SET revoked_at = '2030-01-01 00:00:00+00'",
        "API key {gone} was revoked at .* on record, at 2030-01-01T00:00:00.00:00 in its table",
    ),
    "a suspension removed": (
        f"DELETE FROM {SUSPENSIONS} WHERE suspended",
        "the table of suspensions says resumed, the records say suspended, resumed",
    ),
    "all of them removed": (
        f"DELETE FROM {SUSPENSIONS}",
        "the table of suspensions says nothing, the records say suspended, resumed",
    ),
    "a suspension planted": (
        PLANTED_SUSPENSION,
        "the table of suspensions says suspended, resumed, suspended, the records say suspended, resumed",
    ),
    "a suspension of another time": (
        f"UPDATE {SUSPENSIONS} SET changed_at = '2020-01-01 00:00:00+00' WHERE suspended",
        "it was suspended at .* on record, at 2020-01-01T00:00:00.00:00 in the table",
    ),
    "a login planted": (
        PLANTED_LOGIN,
        r"SQL login trails_auditor_ffffffffffff \(spy\) was made, and is not on record",
    ),
    "a login removed": (
        "DELETE FROM trails.sql_logins",
        r"SQL login {login} \(audit\) is there and on record, and its row is gone",
    ),
    "a login of another name": (
        "UPDATE trails.sql_logins SET name = 'x'",
        r"SQL login {login} \(audit\) differs from its record in name or time",
    ),
    "a login of another time": (
        "UPDATE trails.sql_logins SET created_at = created_at + interval '1 microsecond'",
        r"SQL login {login} \(audit\) differs from its record in name or time",
    ),
    "a webhook that was never set up": (
        PLANTED_WEBHOOK,
        r"webhook a{{16}} \(planted\) is in its table, and no record says that it was set up",
    ),
    "a webhook removed": (
        "DELETE FROM trails.webhooks WHERE webhook_id = '{hook}'",
        r"webhook {hook} \(tell\) was set up on record, and its row is gone",
    ),
    "a webhook that was ended removed": (
        "DELETE FROM trails.webhooks WHERE webhook_id = '{ended}'",
        r"webhook {ended} \(tell\) was set up on record, and its row is gone",
    ),
    "a webhook of more": (
        "UPDATE trails.webhooks SET kinds = NULL, agents = NULL WHERE webhook_id = '{hook}'",
        r"webhook {hook} \(tell\) differs from its record: kinds, agents, target",
    ),
    "a webhook of another name and time": (
        "UPDATE trails.webhooks SET name = 'x', created_at = 'infinity' WHERE webhook_id = '{hook}'",
        r"webhook {hook} \(tell\) differs from its record: name, created_at, target",
    ),
    "a webhook to somewhere else": (
        ELSEWHERE,
        r"webhook {hook} \(tell\) differs from its record: target",
    ),
    "another name of the tenant": (
        f"UPDATE trails.tenants SET name = 'Acme Ltd' WHERE {ACME}",
        r"the table of tenants calls it acme \(Acme Ltd\), its record acme \(Acme\)",
    ),
    "a chain that is another": (
        "UPDATE trails.agents SET guarded = true WHERE agent_id = 'bot'",
        ANOTHER_CHAIN,
    ),
    "a chain removed": (CHAIN_REMOVED, r"the chain of agent bot is on record \(seq \d+\) and is gone"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_superuser_changes_is_named_and_believed_by_nobody(
    acme: tuple[Trail, World], what: str
) -> None:
    trail, world = acme
    statement, said = CHANGES[what]
    names = {**world.ids, "login": world.login}
    meddle(trail, statement.format(**names))
    result = trail.verify()
    assert result.code == 1, result.out
    [reason] = reasons(result)
    assert re.fullmatch(said.format(**names), reason)
    assert not revived(trail, world, "gone")
    # Of another tenant alone, and of one agent alone, it says nothing.
    assert trail.verify("--tenant", "default").code == 0
    assert reasons(trail.verify("--tenant", "acme")) == [reason]


def test_signing_keys_are_those_on_record(acme: tuple[Trail, World]) -> None:
    trail, _ = acme
    newest = f"SELECT public_key::text FROM trails.signing_keys WHERE {ACME} ORDER BY created_at DESC LIMIT 1"
    [(key,)] = trail.fetch(newest)
    meddle(trail, f"DELETE FROM trails.signing_keys WHERE public_key = '{key}'")
    assert reasons(trail.verify()) == [f"signing key {key} is on record, and its row is gone"]


@pytest.mark.parametrize("gone", [f"agent_id = '_administration' AND {ACME}", ACME])
def test_a_tenant_whose_administration_is_gone_has_no_rows_either(
    acme: tuple[Trail, World], gone: str
) -> None:
    """Its other chains may be gone with it."""
    trail, world = acme
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {gone}", f"DELETE FROM trails.agents WHERE {gone}")
    result = trail.verify()
    assert result.code == 1
    assert reasons(result) == [
        f"{count} {name} in the tables are on no record: it has no administration chain"
        for count, name in (
            (3, "API keys"),
            (1, "revocations of API keys"),
            (2, "suspensions"),
            (1, "SQL logins"),
            (2, "webhooks"),
        )
    ]
    assert not any(revived(trail, world, name) for name in world.tokens)


def test_a_role_that_sees_rows_and_no_chain_is_told_nothing_wrong(acme: tuple[Trail, World]) -> None:
    """Row security shows the owner of the tables all SQL logins, and nothing else of a tenant."""
    trail, _ = acme
    result = trail.verify(env=trail.with_url(f"{trail.database.admin_url}?role=trails_owner"))
    assert "row security binds the role trails_owner" in result.json["notes"][0]
    assert not [one for one in result.json["findings"] if one["what"].startswith("administration")]


def test_an_administration_that_does_not_verify_is_compared_with_nothing(acme: tuple[Trail, World]) -> None:
    trail, _ = acme
    trail.tamper(
        f"UPDATE {TRAIL} SET actor = 'nobody' WHERE {ACME} AND agent_id = '_administration' AND seq = 1",
        drop_checks=True,
    )
    found = trail.verify().json["findings"]
    told = [(one["what"], one["verdict"], one["reason"]) for one in found if one["what"].startswith("admin")]
    assert told == [
        ("administration of acme", "could not check",
         "its records do not verify, so that no table was compared with them")
    ]  # fmt: skip


def test_a_role_that_may_not_read_the_tables_says_so(acme: tuple[Trail, World]) -> None:
    trail, _ = acme
    meddle(trail, f"DELETE FROM {REVOCATIONS}", CHANGES["a chain that is another"][0])
    reader = f"reader_{secrets.token_hex(4)}"
    with psycopg.connect(trail.database.admin_url, autocommit=True) as admin:
        try:
            admin.execute(f"CREATE ROLE {reader} LOGIN BYPASSRLS PASSWORD 'secret'".encode())
            admin.execute(f"GRANT CONNECT ON DATABASE {trail.database.name} TO {reader}".encode())
            admin.execute(f"GRANT USAGE ON SCHEMA trails TO {reader}".encode())
            readable = f"{TRAIL}, trails.agents, trails.tenants, trails.signing_keys, trails.alembic_version"
            admin.execute(f"GRANT SELECT ON {readable} TO {reader}".encode())
            url = trail.database.app_url.replace(f"trails_app:{APP_PASSWORD}", f"{reader}:secret")
            result = trail.verify(env=trail.with_url(url))
        finally:
            admin.execute(f"DROP OWNED BY {reader}".encode())
            admin.execute(f"DROP ROLE {reader}".encode())
    [note] = result.json["notes"]
    assert "not compared with the records of administration" in note
    # The registry of chains is compared all the same.
    told = [one["reason"] for one in result.json["findings"] if one["what"] == "administration of acme"]
    assert [reason.partition(" on record")[0] for reason in told] == ["the chain of agent bot is not the one"]


def test_the_services_own_role_compares_the_one_tenant_that_it_looks_at(acme: tuple[Trail, World]) -> None:
    trail, world = acme
    env = trail.with_url(trail.database.app_url)
    assert trail.verify("--tenant", "acme", env=env).code == 0
    meddle(trail, "DELETE FROM trails.api_key_revocations")
    assert trail.verify("--tenant", "default", env=env).code == 0
    [reason] = reasons(trail.verify("--tenant", "acme", env=env))
    assert world.ids["gone"] in reason


# --- a retired key --------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("secs", "stolen"), [(61, True), (59, False)])
def test_a_chain_that_was_begun_under_a_retired_key_is_named(
    acme: tuple[Trail, World], *, named: bool, secs: int, stolen: bool
) -> None:
    trail, world = acme
    asyncio.run(_begin_late(trail.database.app_url, world.tenant, secs, named=named))
    result = trail.verify()
    expected = [
        *([] if named else ["is named by no record"]),
        *(["was begun under a signing key that was retired before"] if stolen else []),
    ]
    assert result.code == (1 if expected else 0)
    for reason, says in zip(reasons(result), expected, strict=True):
        assert reason.startswith("the chain of agent late (")
        assert says in reason


async def _begin_late(url: str, tenant: UUID, secs: int, *, named: bool) -> None:
    """A chain signed by the tenant's first key, so many seconds after the second one was made."""
    async with await create_pool(url, max_size=2) as pool:
        shift = 0
        ledger = await Ledger.open(pool, master_key=MASTER_KEY, clock=lambda: system_clock() + shift)
        state = await ledger.administration.state(tenant)
        [rotation] = state.rotations
        at = round((rotation.told.at.timestamp() + secs) * 1_000_000)
        shift = at - system_clock()
        keys = await ledger._keystore.of(tenant)
        chain_id = ChainId(tenant, "late", uuid4(), guarded=False)
        old = keys.by_public_key[rotation.old]
        payload = {
            "log_id": "late",
            "public_key": old.public.hex,
            "tenant": str(tenant),
            "log_uuid": str(chain_id.log_uuid),
        }
        [genesis] = seal_all([Draft(GENESIS, payload, "thief")], None, at, old)  # type: ignore[arg-type]
        row = row_of(chain_id, genesis, old.public.key_id)
        await db.ledger.append(pool, [row], chains=[registry_row(chain_id, row)])
        if named:
            await _tell_of(ledger, chain_id)
        await ledger.close()


# --- SQL logins and their records -----------------------------------------------------------------------


@pytest.fixture
def admin_env(acme: tuple[Trail, World]) -> Iterator[dict[str, str]]:
    """As the database's administrator; the service's role has the password that the master key gives."""
    trail, world = acme
    derived = app_password(Secrets("", MASTER_KEY))
    with psycopg.connect(trail.database.admin_url, autocommit=True) as admin:
        admin.execute(f"ALTER ROLE trails_app PASSWORD '{derived}'".encode())
        yield trail.env
        admin.execute(f"ALTER ROLE trails_app PASSWORD '{APP_PASSWORD}'".encode())
        for (login,) in admin.execute("SELECT login FROM trails.sql_logins").fetchall():
            if login != world.login:
                admin.execute(f'DROP ROLE IF EXISTS "{login}"'.encode())


def test_a_login_is_on_record_before_it_is_there_and_gone_before_its_end_is(
    acme: tuple[Trail, World], admin_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut between the two steps: what is left is told, and ``drop`` finishes it."""
    trail, _ = acme
    make = ("sql-login", "create", "--tenant", "acme", "--name", "second", "--json")
    with monkeypatch.context() as patch:
        patch.setattr(sql_logins, "create", _killed)
        assert run_trails(*make, env=admin_env).code == KILLED
    result = trail.verify()
    [reason] = reasons(result)
    assert result.code == 3
    assert "is on record and not there: making it was interrupted" in reason
    login = reason.split()[2]
    assert login not in run_trails("sql-login", "list", "--tenant", "acme", env=admin_env).out
    assert run_trails("sql-login", "drop", login, "--tenant", "acme", env=admin_env).code == 0
    assert trail.verify().code == 0
    again = run_trails("sql-login", "drop", login, "--tenant", "acme", env=admin_env)
    assert (again.code, "has no SQL login" in again.err) == (1, True)

    made = run_trails(*make, env=admin_env).json["login"]
    assert trail.verify().code == 0
    with monkeypatch.context() as patch:
        patch.setattr("app.cli.sql_login._record", _killed)
        assert run_trails("sql-login", "drop", made, "--tenant", "acme", env=admin_env).code == KILLED
    assert trail.fetch("SELECT 1 FROM pg_roles WHERE rolname = %s", made) == []
    assert run_trails("sql-login", "drop", made, "--tenant", "acme", env=admin_env).code == 0
    acts = trail.fetch(
        f"SELECT trace_data ->> 'act' FROM {TRAIL} WHERE trace_data ->> 'login' = %s ORDER BY seq", made
    )
    assert acts == [("sql_login_created",), ("sql_login_dropped",)]
    assert trail.verify().code == 0


def test_a_login_whose_end_is_on_record_already_is_ended_without_a_second_word(
    acme: tuple[Trail, World], admin_env: dict[str, str]
) -> None:
    trail, world = acme
    made = run_trails("sql-login", "create", "--tenant", "acme", "--name", "x", "--json", env=admin_env)
    login = made.json["login"]
    dropped = {"act": "sql_login_dropped", "login": login}
    env = admin_env["TRAILS_DATABASE_URL"]
    with psycopg.connect(env, autocommit=True) as admin:
        admin.execute(f"ALTER ROLE trails_app PASSWORD '{APP_PASSWORD}'".encode())
    asyncio.run(_record(trail.database.app_url, world.tenant, dropped))
    [reason] = reasons(trail.verify())
    assert reason == f"SQL login {login} (x) was dropped on record, and can still log in"
    with psycopg.connect(env, autocommit=True) as admin:
        derived = app_password(Secrets("", MASTER_KEY))
        admin.execute(f"ALTER ROLE trails_app PASSWORD '{derived}'".encode())
    assert run_trails("sql-login", "drop", login, "--tenant", "acme", env=admin_env).code == 0
    assert trail.verify().code == 0
    said = f"SELECT count(*) FROM {TRAIL} WHERE trace_data ->> 'act' = 'sql_login_dropped'"
    assert trail.fetch(said) == [(1,)]


def _killed(*_arguments: object, **_named: object) -> None:
    raise KeyboardInterrupt


def test_a_login_that_is_not_made_is_ended_on_record(
    acme: tuple[Trail, World], admin_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trail, _ = acme

    def refuse(*_arguments: object, **_named: object) -> None:
        raise TrailsError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(sql_logins, "create", refuse)
        refused = run_trails("sql-login", "create", "--tenant", "acme", "--name", "x", env=admin_env)
    assert (refused.code, "no such luck" in refused.err) == (1, True)
    assert trail.verify().code == 0
