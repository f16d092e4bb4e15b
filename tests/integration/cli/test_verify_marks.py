"""``trails verify --mark`` and ``--resume`` on a database: going on from where one came to (case T11)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.chain.keys import SigningKey
from app.ledger import Ledger
from app.verification import marks
from app.verification.marks import FORMAT
from db.pool import create_pool
from tests.integration.cli.conftest import TRAIL, Trail
from tests.support.cli import Result, faults, run_trails, verify
from tests.support.jobs import shared_work
from tests.support.ledgers import MASTER_KEY, Caller, posted

SCOUT = "agent_id = 'scout'"
ROOT = Path(__file__).resolve().parents[3]
LIMIT_SECS = 60


@pytest.fixture
def mark(trail: Trail) -> Path:
    """The mark of a verification of everything."""
    path = trail.folder / "mark"
    assert trail.verify("--mark", path).code == 0
    return path


def scout(result: Result) -> dict[str, Any]:
    return next(chain for chain in result.json["chains"] if chain["agent_id"] == "scout")


async def _go_on(url: str, times: int, agent_id: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY, snapshot_every=5)
        caller = Caller(ledger, agent_id)
        for number in range(times):
            await caller.ask("search", {"n": number})
            await caller.post(posted({"type": "t"}))
        await ledger.close()


def go_on(trail: Trail, times: int = 4, agent_id: str = "scout") -> None:
    """The agent works on."""
    asyncio.run(_go_on(trail.database.app_url, times, agent_id))


def test_t11_what_stands_behind_a_mark_is_verified_and_never_called_the_whole(
    trail: Trail, mark: Path
) -> None:
    assert mark.stat().st_mode & 0o777 == 0o600
    whole = trail.verify()
    go_on(trail)
    grown = int(trail.fetch(f"SELECT count(*) FROM {TRAIL} WHERE {SCOUT}")[0][0])
    result = trail.verify("--resume", mark)
    assert (result.code, result.json["verdict"]) == (8, "verified from a mark on")
    chain = scout(result)
    assert (chain["mark"]["seq"], chain["mark"]["records"]) == (14, 14)
    assert chain["checked"] == grown - 14  # with the record that the mark names
    assert result.json["checked"] + result.json["mark"]["records"] == whole.json["checked"] + grown - 15
    text = trail.trails("verify", "--resume", mark).out.replace("\n", " ")
    assert "were not read: that they were sound is the word of the mark of 20" in text
    assert not any(line.startswith("verified: ") for line in text.splitlines())


def test_t11_a_mark_of_a_resumed_run_leads_on_and_remembers_the_whole_reading(
    trail: Trail, mark: Path
) -> None:
    def since(path: Path) -> list[str]:
        return sorted(chain["since"] for chain in json.loads(path.read_bytes().splitlines()[0])["chains"])

    first = since(mark)
    go_on(trail)
    again = trail.folder / "again"
    assert trail.verify("--resume", mark, "--mark", again).code == 8
    assert since(again) == first
    result = trail.verify("--resume", again)
    assert (result.code, scout(result)["checked"]) == (8, 1)
    assert scout(result)["mark"]["seq"] > 14
    assert trail.verify().code == 0


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        (f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 14", (14, "order")),
        (f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq >= 14", (14, "order")),
        (f"UPDATE {TRAIL} SET hash = repeat('0', 64) WHERE {SCOUT} AND seq = 14", (14, "fork")),
        (f"UPDATE {TRAIL} SET signed_text = signed_text || ' ' WHERE {SCOUT} AND seq = 14", (14, "fork")),
        (f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 17", (17, "order")),
        (f"UPDATE {TRAIL} SET actor = 'x' WHERE {SCOUT} AND seq = 16", (16, "mirror")),
    ],
)
def test_t11_what_was_changed_from_the_mark_on_is_found(
    trail: Trail, mark: Path, statement: str, fault: tuple[int, str]
) -> None:
    go_on(trail)
    trail.tamper(statement, drop_checks=True)
    result = trail.verify("--resume", mark)
    assert (result.code, fault in faults(result)) == (1, True), faults(result)


def test_t11_what_was_changed_before_the_mark_is_the_marks_word(trail: Trail, mark: Path) -> None:
    """What the guides say that it cannot see, and a whole verification can."""
    trail.tamper(f"UPDATE {TRAIL} SET actor = 'x' WHERE {SCOUT} AND seq = 2", drop_checks=True)
    assert "mirror" not in {fault for _, fault in faults(trail.verify("--resume", mark))}
    assert (2, "mirror") in faults(trail.verify())


def test_t11_a_chain_that_the_mark_names_and_that_is_gone_is_tampering(trail: Trail, mark: Path) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT}", "DELETE FROM trails.agents WHERE agent_id = 'scout'")
    result = trail.verify("--resume", mark)
    assert result.code == 1
    assert any("not in the registry any more" in finding["reason"] for finding in result.json["findings"])


def test_t11_a_chain_that_was_tampered_with_has_no_place_in_a_mark(trail: Trail) -> None:
    trail.tamper(f"UPDATE {TRAIL} SET actor = 'x' WHERE {SCOUT} AND seq = 2", drop_checks=True)
    mark = trail.folder / "mark"
    assert trail.verify("--mark", mark).code == 1
    assert "scout" not in {
        chain["agent_id"] for chain in json.loads(mark.read_bytes().splitlines()[0])["chains"]
    }
    assert (2, "mirror") in faults(trail.verify("--resume", mark))


def test_t11_a_head_kept_elsewhere_before_the_mark_means_reading_the_chain(trail: Trail, mark: Path) -> None:
    kept = trail.fetch(f"SELECT seq || ':' || hash FROM {TRAIL} WHERE {SCOUT} AND seq = 3")[0][0]
    result = trail.verify("--resume", mark, "--agent", "scout", "--checkpoint", kept)
    assert (result.code, scout(result)["checked"], scout(result)["anchored_to"]) == (0, 15, 3)
    at_mark = trail.head()
    result = trail.verify("--resume", mark, "--agent", "scout", "--checkpoint", at_mark)
    assert (result.code, scout(result)["checked"], scout(result)["anchored_to"]) == (8, 1, 14)


def test_t11_a_snapshot_behind_a_mark_is_compared_with_what_the_mark_says(trail: Trail, mark: Path) -> None:
    go_on(trail)
    said = msgspec.json.decode(mark.read_bytes().splitlines()[0])
    for chain in said["chains"]:
        if chain["agent_id"] == "scout":
            chain["fold"]["allowed"] += 1
    signed_again(mark, said)
    assert "fold" in {fault for _, fault in faults(trail.verify("--resume", mark))}


def test_t11_a_mark_behind_what_cannot_be_folded_vouches_for_no_snapshot(trail: Trail, mark: Path) -> None:
    said = msgspec.json.decode(mark.read_bytes().splitlines()[0])
    for chain in said["chains"]:
        chain["fold"] = None  # as it is behind a record of a kind that is not known
    signed_again(mark, said)
    assert trail.verify("--resume", mark).code == 8
    go_on(trail)
    assert "fold" in {fault for _, fault in faults(trail.verify("--resume", mark))}


def test_t11_a_mark_says_what_a_chain_comes_to_that_one_worker_read_whole(trail: Trail) -> None:
    path = trail.folder / "mark"
    with shared_work(rows=1_000):  # all chains are one piece
        assert run_trails("verify", "--mark", path, "--jobs", 2, env=trail.env).code == 0
    for agent_id in ("scout", "other"):
        go_on(trail, agent_id=agent_id)
    result = trail.verify("--resume", path)
    assert (result.code, faults(result)) == (8, [])


def signed_again(mark: Path, said: Any) -> None:
    """What somebody makes who has the key of marks."""
    key = SigningKey.from_raw(marks.derive(MASTER_KEY, "verify-mark"))
    text = msgspec.json.encode(said)
    signature = key.sign(FORMAT.encode() + b"\n" + text).hex()
    signed = msgspec.json.encode({"public_key": key.public.hex, "signature": signature})
    mark.write_bytes(text + b"\n" + signed + b"\n")


def refused(trail: Trail, mark: Path, sentence: str, env: dict[str, str] | None = None) -> None:
    result = trail.verify("--resume", mark, env=env)
    assert (result.code, result.json["checked"]) == (5, 0)
    assert any(sentence in finding["reason"] for finding in result.json["findings"]), result.json["findings"]


def test_t11_a_mark_that_is_not_ours_or_not_whole_is_refused(trail: Trail, mark: Path) -> None:
    good = mark.read_bytes()
    said, signed, _ = good.split(b"\n")
    for bad, sentence in (
        (good.replace(b'"seq":14', b'"seq":15'), "was changed after it was signed"),
        (good[: len(said) // 2], "is damaged"),
        (b"", "is damaged"),
        (said.replace(b"-v1", b"-v0") + b"\n" + signed, "is of the form lineage-verify-mark-v0"),
    ):
        mark.write_bytes(bad)
        refused(trail, mark, sentence)
    mark.unlink()
    refused(trail, mark, "cannot be read")


def test_t11_a_mark_that_another_key_signed_is_refused(trail: Trail, mark: Path) -> None:
    other = trail.with_url(trail.database.admin_url, master_key=bytes(range(1, 33)))
    refused(trail, mark, "was signed with another key", other)
    nobody = trail.with_url(trail.database.admin_url, master_key=None)
    refused(trail, mark, "nothing says whose mark", nobody)


def test_t11_without_a_master_key_the_auditor_has_a_key_of_their_own(trail: Trail) -> None:
    env, mark = trail.with_url(trail.database.admin_url, master_key=None), trail.folder / "mark"
    assert verify("--mark", mark, env=env).code == 6
    own = trail.folder / "mark.key"
    assert own.stat().st_mode & 0o777 == 0o600
    result = verify("--resume", mark, env=env)
    assert (result.code, scout(result)["checked"]) == (6, 1)
    own.unlink()
    own.write_text("11" * 32)
    own.chmod(0o600)
    refused(trail, mark, "was signed with another key", env)


def test_t11_a_mark_of_another_database_or_of_other_keys_is_refused(trail: Trail, mark: Path) -> None:
    key = scout(trail.verify())["public_key"]
    pinned = trail.verify("--resume", mark, "--public-key", key)
    assert (pinned.code, pinned.json["checked"]) == (5, 0)
    assert "other keys trusted" in pinned.json["findings"][0]["reason"]
    trail.tamper(
        "UPDATE trails.agents SET log_uuid = gen_random_uuid()",
    )
    result = trail.verify("--resume", mark)
    assert result.code == 5
    assert any("of another database" in finding["reason"] for finding in result.json["findings"])


def test_t11_a_verification_that_is_killed_leaves_its_last_mark(trail: Trail) -> None:
    """Killed in the middle of a chain, it left a mark from which the next one goes on."""
    mark = trail.folder / "mark"
    script = """
import os, signal, sys
from app.verification import marks
from app.cli.main import main
from app.audit.walk import Walk
from tests.support.jobs import shared_work
marks.EVERY_SECS = marks._WRITING_SHARE = 0
count = Walk._count
def killing(walk, rows):
    count(walk, rows)
    if walk._chain.name.agent_id == "scout" and walk._chain._rows >= 9:
        os.kill(os.getpid(), signal.SIGKILL)
Walk._count = killing
with shared_work(rows=1):
    sys.exit(main())
"""
    process = subprocess.run(
        [sys.executable, "-c", script, "verify", "--jobs", "1", "--mark", str(mark), "--quiet"],
        env={**os.environ, **trail.env, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=LIMIT_SECS,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    result = trail.verify("--resume", mark)
    whole = trail.verify()
    assert (result.code, whole.code) == (8, 0)
    assert 0 < scout(result)["checked"] < scout(whole)["checked"] == 15
    assert not list(trail.folder.glob(".mark.*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mark", "mark"), "go on with: --resume mark --mark mark"),
        ((), "with --mark MARK it could go on from here"),
    ],
)
def test_who_interrupts_a_verification_hears_how_it_goes_on(
    trail: Trail, options: tuple[str, ...], said: str
) -> None:
    script = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without
from app.verification import marks
from app.cli.main import main
from app.audit.walk import Walk
from tests.support.jobs import shared_work
marks.EVERY_SECS = 0.0
count = Walk._count
def interrupting(walk, rows):
    count(walk, rows)
    if walk._chain.name.agent_id == "scout" and walk._chain._rows >= 9:
        os.kill(os.getpid(), signal.SIGINT)
Walk._count = interrupting
with shared_work(rows=1):
    sys.exit(main())
"""
    process = subprocess.run(
        [sys.executable, "-c", script, "verify", "--jobs", "1", *options],
        env={**os.environ, **trail.env, "PYTHONPATH": str(ROOT)},
        cwd=trail.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECS,
        check=False,
    )
    assert (process.returncode, process.stdout) == (130, "")
    assert f"trails: interrupted before the end, which is no verdict; {said}" in process.stderr


def test_a_mark_that_cannot_be_written_is_said_before_anything_is_read(trail: Trail) -> None:
    result = trail.verify("--mark", trail.folder / "nowhere" / "mark")
    assert (result.code, result.json["checked"]) == (5, 0)
    assert "its folder is not there" in result.json["findings"][0]["reason"]
