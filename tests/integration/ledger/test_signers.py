"""Signing keys that are kept elsewhere: in a file, a variable, or with somebody else's package (case C24)."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.chain.keys import SigningKey
from app.chain.strict import RECORD_STRING
from app.errors import BadRequestError, ConflictError, KeyMaterialError, UnavailableError
from app.ledger import Ledger
from app.ledger.keys import sealing
from app.ledger.keys.signers import open_signer
from app.ledger.post import Receipt
from app.ledger.tenancy.administration import NewTenant
from app.principal import ADMINISTRATION
from db.schema import DEFAULT_TENANT_ID
from tests.support.kms import Kms, install
from tests.support.ledgers import Caller, Opener, Table, posted

SECRET = bytes(range(50, 82))
PUBLIC = SigningKey.from_raw(SECRET).public
PEM = ed25519.Ed25519PrivateKey.from_private_bytes(SECRET).private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
)


@pytest.fixture
def kms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kms]:
    """A key keeper of its own process, and the package that speaks to it."""
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    running = Kms(tmp_path, SECRET)
    yield running
    running.stop()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return written(tmp_path / "acme.key", SECRET.hex() + "\n")


def written(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


async def rotated(ledger: Ledger, source: str | None = None) -> str:
    """Rotates the default tenant's key; this ledger signs by it at once."""
    ledger._keystore.settle_secs = 0.0
    return await ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root", source)


async def elsewhere(restarted: Opener) -> Ledger:
    """A process that has opened nothing yet."""
    ledger = await restarted()
    ledger._keystore.settle_secs = 0.0
    ledger._keystore.forget(DEFAULT_TENANT_ID)
    return ledger


@pytest.mark.parametrize("form", ["file", "file of three slashes", "pem", "env", "env of pem"])
async def test_a_key_kept_elsewhere_signs_and_nothing_of_it_is_in_the_database(  # noqa: PLR0917  fixtures
    agent: Caller,
    restarted: Opener,
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    text = PEM if "pem" in form else SECRET.hex().encode()
    path = written(tmp_path / "a key", text)
    monkeypatch.setenv("ACME_KEY", text.decode())
    quoted = str(path).replace(" ", "%20")
    uri = {"file": f"file:{quoted}", "file of three slashes": f"file://{quoted}", "pem": f"file:{quoted}"}
    source = uri.get(form, "env:ACME_KEY")
    assert await rotated(agent.ledger, source) == PUBLIC.hex
    await agent.ask("search")
    await agent.ask("search")
    rows = await table.rows()
    assert [row["kind"] for row in rows].count("key_rotated") == 1
    assert rows[-1]["key_id"] == PUBLIC.key_id
    other = await elsewhere(restarted)
    await agent.at(other).ask("search")
    assert (await agent.at(other).verify())["ok"] is True
    assert await everything_of(table.admin, other) == []
    acts = [record["payload"].get("source") for record in await table.records(ADMINISTRATION)]
    assert acts[-1] == source.partition(":")[0]


async def everything_of(admin: asyncpg.Connection[asyncpg.Record], ledger: Ledger) -> list[str]:
    """The places in tables and memory where the secret or its source's place can be read."""
    keys = await ledger._keystore.of(DEFAULT_TENANT_ID)
    shown = {"repr of keys": repr(keys)}
    for name in ("signing_keys", "agent_audit_trails", "agents", "tenants"):
        shown[name] = str(await admin.fetch(f"SELECT t::text FROM trails.{name} AS t"))
    needles = [SECRET.hex(), PEM.decode().splitlines()[1], SECRET.decode("latin1"), "ACME_KEY", "a key"]
    return [place for place, text in shown.items() if any(needle in text for needle in needles)]


async def test_the_key_comes_back_into_the_database(agent: Caller, key_file: Path, table: Table) -> None:
    await rotated(agent.ledger, f"file:{key_file}")
    await agent.ask("search")
    back = await rotated(agent.ledger)
    await agent.ask("search")
    key_file.unlink()
    await agent.ask("search")
    assert back != PUBLIC.hex
    assert len({row["key_id"] for row in await table.rows()}) == 3
    assert (await agent.verify())["ok"] is True


async def test_without_its_source_nothing_is_written_and_everything_is_read(
    agent: Caller, restarted: Opener, table: Table, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await rotated(agent.ledger, f"file:{key_file}")
    await agent.ask("search")
    key_file.rename(key_file.with_suffix(".away"))
    before = len(await table.rows())
    there = agent.at(await elsewhere(restarted))
    with caplog.at_level(logging.WARNING, "trails.signers"):
        await refused(there)
    assert [record.getMessage() for record in caplog.records] == [
        f"signing key {PUBLIC.key_id}: file: {key_file}: No such file or directory"
    ]
    assert len(await table.rows()) == before
    assert (await there.status())["public_key"] is not None
    assert (await there.verify())["ok"] is True
    await there.ledger.probe()
    await agent.ask("search")  # where it is open, it signs on
    key_file.with_suffix(".away").rename(key_file)
    await there.ask("search")
    assert len(await table.rows()) == before + 4


async def refused(there: Caller) -> None:
    """Every way to write is answered with the same sentence."""
    sentence = "cannot be used at the moment.*nothing was allowed"
    with pytest.raises(UnavailableError, match=sentence):
        await there.ask("search")
    with pytest.raises(UnavailableError, match=sentence):
        await there.post(posted({"n": 1}))
    with pytest.raises(UnavailableError, match=sentence):
        await Caller(there.ledger, "young").create()
    with pytest.raises(UnavailableError, match=sentence):
        await there.ledger.administration.record(DEFAULT_TENANT_ID, "root", {"act": "x"})


async def test_a_file_that_holds_another_key_signs_nothing(
    agent: Caller, restarted: Opener, table: Table, key_file: Path
) -> None:
    await rotated(agent.ledger, f"file:{key_file}")
    await agent.ask("search")
    written(key_file, bytes(range(32)).hex())
    before = len(await table.rows())
    await refused(agent.at(await elsewhere(restarted)))
    assert len(await table.rows()) == before


async def test_a_key_is_put_in_force_once(agent: Caller, key_file: Path) -> None:
    await rotated(agent.ledger, f"file:{key_file}")
    for _ in range(2):
        with pytest.raises(ConflictError, match="already"):
            await rotated(agent.ledger, f"file:{key_file}")
        await rotated(agent.ledger)


async def test_a_tenant_begins_with_a_key_kept_elsewhere(ledger: Ledger, key_file: Path) -> None:
    wanted = NewTenant("acme", "Acme", "Ada", f"file:{key_file}")
    tenant, _ = await ledger.administration.create_tenant(wanted, "root")
    assert await ledger.public_key(tenant.tenant_id) == PUBLIC.hex
    caller = Caller(ledger, "scout", tenant.tenant_id)
    await caller.create()
    assert (await caller.verify())["public_key"] == PUBLIC.hex


# --- a package of somebody else ------------------------------------------------------------------------


async def test_a_package_adds_a_scheme_and_its_key_never_leaves_its_process(
    agent: Caller, restarted: Opener, table: Table, kms: Kms
) -> None:
    assert await rotated(agent.ledger, kms.uri) == PUBLIC.hex
    other = agent.at(await elsewhere(restarted))
    await asyncio.gather(*(caller.ask("search", n) for n in range(4) for caller in (agent, other)))
    receipts = await agent.post(*(posted({"n": n}) for n in range(3)))
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    await Caller(agent.ledger, "young").create()
    signed = [
        row["key_id"] for row in await table.admin.fetch("SELECT key_id FROM trails.agent_audit_trails")
    ]
    assert signed.count(PUBLIC.key_id) <= kms.asked()
    assert signed.count(PUBLIC.key_id) >= 8 * 2 + 3 + 2
    for caller in (agent, other, Caller(other.ledger, "young")):
        assert (await caller.verify())["ok"] is True
    before = kms.asked()
    await agent.ledger.probe()
    assert kms.asked() == before


async def test_what_cannot_be_sealed_is_told_where_it_was_posted(agent: Caller, kms: Kms) -> None:
    await rotated(agent.ledger, kms.uri)
    long = {"text": "x" * (RECORD_STRING + 1)}
    first, second, third = await agent.post(posted({"n": 1}), posted(long), posted({"n": 3}))
    assert isinstance(second, BadRequestError)
    assert isinstance(first, Receipt)
    assert isinstance(third, Receipt)
    assert (await agent.verify())["ok"] is True


@pytest.mark.parametrize("mode", ["wrong", "short", "hang", "gone"])
async def test_a_keeper_that_does_not_sign_lets_nothing_be_written(  # noqa: PLR0917  fixtures
    agent: Caller,
    restarted: Opener,
    table: Table,
    kms: Kms,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    """A wrong signature is never stored; one that does not come costs its own tenant 503, and no other."""
    await rotated(agent.ledger, kms.uri)
    await agent.ask("search")
    neighbour = uuid4()
    await agent.ledger.create_tenant(neighbour, "neighbour", "N")
    rows = await table.rows()
    there = agent.at(await elsewhere(restarted))
    monkeypatch.setattr(sealing, "SIGN_SECS", 0.5)
    kms.stop() if mode == "gone" else kms.mode(mode)
    await refused(there)
    await refused(agent)
    await Caller(agent.ledger, "theirs", neighbour).create()
    assert await table.rows() == rows
    assert (await there.verify())["ok"] is True
    if mode != "gone":
        monkeypatch.setattr(sealing, "SIGN_SECS", 10.0)
        kms.mode("sign")
        await agent.ask("search")
        await there.ask("search")
        assert (await there.verify())["ok"] is True


async def test_signatures_that_never_come_do_not_fill_the_process(
    agent: Caller, kms: Kms, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [Caller(agent.ledger, f"other-{n}") for n in range(40)]
    await asyncio.gather(*(other.create() for other in others))
    await rotated(agent.ledger, kms.uri)
    monkeypatch.setattr(sealing, "SIGN_SECS", 0.5)
    kms.mode("hang")
    answers = await asyncio.gather(*(other.ask() for other in others), return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnavailableError}
    assert len([t for t in threading.enumerate() if t.name == "trails-signer"]) <= 16
    kms.stop()


async def test_a_source_that_does_not_sign_is_no_key(ledger: Ledger, kms: Kms) -> None:
    for mode in ("wrong", "short"):
        kms.mode(mode)
        with pytest.raises(KeyMaterialError, match="does not sign"):
            await rotated(ledger, kms.uri)
    kms.stop()
    with pytest.raises(KeyMaterialError, match="does not open"):
        await rotated(ledger, kms.uri)
    assert len((await ledger._keystore.of(DEFAULT_TENANT_ID)).rows) == 1


def test_two_packages_of_one_scheme_open_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("acme_kms", "other_kms"):
        install(tmp_path / name, name)
        monkeypatch.syspath_prepend(str(tmp_path / name))
    with pytest.raises(KeyMaterialError, match="several"):
        open_signer("testkms:/nowhere")


# --- what a source may be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("", "URI"),
        ("/run/keys/acme.pem", "URI"),
        ("file:", "URI"),
        ("FILE:/x", "URI"),
        ("file:/a b", "URI"),
        ("file:/" + "x" * 2_000, "URI"),
        ("file:acme.pem", "whole path"),
        ("file://host/acme.pem", "whole path"),
        ("file:/acme.pem?x=1", "whole path"),
        ("file:/nowhere/at/all", "No such file"),
        ("file:/%00", "no key"),
        ("file:/dev/null", "plain file"),
        ("env:NOT_SET_ANYWHERE", "not set"),
        ("env:A=B", "characters"),
        ("env:TRAILS_MASTER_KEY", "a secret of the service's own"),
        ("env:TRAILS_OPERATOR_TOKEN", "a secret of the service's own"),
        ("vault:secret/acme", "no installed package"),
    ],
)
def test_what_is_no_source_is_told(uri: str, told: str) -> None:
    with pytest.raises(KeyMaterialError, match=told):
        open_signer(uri)


def test_a_file_is_held_to_the_rules_of_a_secret(tmp_path: Path, key_file: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(key_file)
    os.mkfifo(pipe, 0o600)
    readable = written(tmp_path / "readable", SECRET.hex(), 0o640)
    for path, told in (
        (link, "is a symbolic link; name the file itself"),
        (pipe, "plain file"),
        (readable, "chmod 600"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(KeyMaterialError, match=told):
            open_signer(f"file:{path}")


@pytest.mark.parametrize("name", ["master.key", "operator.token"])
def test_a_secret_of_the_services_own_is_no_signing_key(tmp_path: Path, name: str) -> None:
    (tmp_path / "keys").mkdir()
    own = written(tmp_path / "keys" / name, SECRET.hex())
    with pytest.raises(KeyMaterialError, match="a secret of the service's own"):
        open_signer(f"file:{own}")


async def test_the_log_says_it_again_when_a_source_fails_for_another_reason(
    agent: Caller, restarted: Opener, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await rotated(agent.ledger, f"file:{key_file}")
    await agent.ask("search")
    there = agent.at(await elsewhere(restarted))
    with caplog.at_level(logging.WARNING, "trails.signers"):
        for change in (key_file.unlink, lambda: None, lambda: written(key_file, os.urandom(32).hex())):
            change()
            with pytest.raises(UnavailableError):
                await there.ask("search")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "No such file" in told[0]
    assert "holds another key" in told[1]


def test_a_file_without_a_key_is_told_without_what_is_in_it(tmp_path: Path) -> None:
    other = rsa.generate_private_key(65_537, 2_048)
    contents = [
        other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        SECRET,
        SECRET.hex().encode()[:-2],
        b"\xff\xfe" * 20,
        b"",
        PEM[:60],
    ]
    for content in contents:
        with pytest.raises(KeyMaterialError) as caught:
            open_signer(f"file:{written(tmp_path / 'key', content)}")
        assert "key" in caught.value.message
        assert SECRET.hex()[:20] not in caught.value.message
