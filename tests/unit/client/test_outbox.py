"""The outbox: everything arrives, once, in order, whatever the service answers meanwhile."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.client.batch import MAX_BATCH_NODES, SERVER_FAULTS
from app.client.errors import OutboxClosedError, OutboxFullError, SpoolError
from app.client.journal import Journal
from app.client.outbox import MAX_RETRY_AFTER_SECS, Backoff, Outbox
from app.client.settings import service
from tests.support.scripted import Got, Reply, Scripted, problem, results, scripted, stored
from tests.unit.client.conftest import MakeOutbox

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = "http://127.0.0.1:1"


def put(outbox: Outbox, *names: str, session: str = "s", timeout: float | None = None) -> None:
    for name in names:
        outbox.put_node(session, name, json.dumps({"node_id": name}).encode(), timeout=timeout)


def names(*numbers: int) -> list[str]:
    return [f"n{number}" for number in range(*numbers)]


def arrived(answering: Scripted) -> list[str]:
    """Ids of the nodes in the order in which they were stored; a request that came again counts once."""
    keys_name_bytes(answering)
    seen = {got.key: got.node_ids for got in answering.got}
    return [node for lines in seen.values() for line in lines for node in line]


def keys_name_bytes(answering: Scripted) -> None:
    """No key ever came with other bytes."""
    seen: dict[str | None, bytes] = {}
    for got in answering.got:
        assert got.key
        assert seen.setdefault(got.key, got.body) == got.body


def refuse(*bad: str) -> Callable[[Got], Reply]:
    """Answers 400 to each line with one of these nodes."""

    def answer(got: Got) -> Reply:
        told: list[dict[str, object]] = [
            {"status": 400, "code": "bad_request", "error": "no"} if set(line) & set(bad) else {"status": 200}
            for line in got.node_ids
        ]
        return results(*told)

    return answer


def at_most(count: int) -> Callable[[Got], Reply]:
    """Answers 413 to more nodes than this."""
    return lambda got: stored(got) if sum(map(len, got.node_ids)) <= count else problem(413, "too_large")


def test_nodes_arrive_in_order(make_outbox: MakeOutbox, answering: Scripted) -> None:
    outbox = make_outbox()
    put(outbox, *names(2_000))
    assert outbox.flush()
    assert arrived(answering) == names(2_000)
    assert max(sum(map(len, got.node_ids)) for got in answering.got) <= MAX_BATCH_NODES
    first = answering.got[0]
    assert first.path == "/v1/agents/bot/traces"
    assert first.headers["authorization"] == "Bearer token-of-the-tests"
    assert first.headers["content-type"] == "application/x-ndjson"
    assert first.headers["user-agent"].startswith("lineage-trails-python")


@pytest.mark.parametrize(
    "trouble",
    [
        Reply(None),  # stored, perhaps; the answer is lost
        problem(503, "unavailable", Retry_After="0"),
        problem(429, "too_many_requests", Retry_After="0"),
        problem(500, "internal"),
        problem(401, "unauthorized"),
        problem(403, "forbidden"),
        problem(404, "not_found"),
        Reply(200, b"<html>", "text/html"),
        Reply(502, b"<html>", "text/html"),
        results({"status": 200}, {"status": 200}),
        results({"status": 503, "code": "unavailable", "error": "e"}),
    ],
    ids=lambda reply: f"{reply.status}-{reply.body[:30]!r}",
)
def test_after_trouble_exactly_the_same_request_comes_again(
    make_outbox: MakeOutbox, answering: Scripted, trouble: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    answering.script = [trouble, trouble, trouble]
    outbox = make_outbox()
    put(outbox, "a")
    while len(answering.got) < 2:
        outbox.flush(0.01)
    put(outbox, "b")
    assert outbox.flush()
    first = answering.got[0]
    assert first.key
    assert [(got.key, got.body) for got in answering.got[:4]] == [(first.key, first.body)] * 4
    assert arrived(answering) == ["a", "b"]
    assert "attempt 1 failed" in caplog.text
    assert "token-of-the-tests" not in caplog.text


def test_flush_says_what_is_in_the_way(make_outbox: MakeOutbox, answering: Scripted) -> None:
    answering.script = [problem(403, "forbidden")] * 10_000
    outbox = make_outbox()
    put(outbox, "a")
    while outbox._trouble is None:
        threading.Event().wait(0.005)
    report = outbox.flush(0.2)
    assert not report
    assert report.waiting == 1
    assert "403 forbidden" in str(report.trouble)
    answering.script.clear()
    assert outbox.flush()


def test_a_refused_node_is_kept_aside_and_hinders_nothing(
    make_outbox: MakeOutbox, answering: Scripted, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answering.script = [refuse("n3")] * 20
    outbox = make_outbox()
    put(outbox, *names(10))
    report = outbox.flush()
    assert not report, "something is not on record"
    assert not report.waiting
    [refusal] = outbox.refused
    assert report.refused == (refusal,)
    assert (refusal.status, refusal.session_id, refusal.node_id) == (400, "s", "n3")
    assert "bad_request" in refusal.reason
    assert json.loads(refusal.body) == {"node_id": "n3"}
    assert "refused what agent bot recorded" in caplog.text
    stored_lines = [
        node for got in answering.got for line in got.node_ids if "n3" not in line for node in line
    ]
    assert stored_lines == [name for name in names(10) if name != "n3"], "each once, in order"
    keys_name_bytes(answering)
    outbox.close()
    assert [path.suffix for path in spool.iterdir() if path.suffix == ".journal"], "the refused one is kept"

    answering.script = []
    again = make_outbox()
    assert again.refused == [refusal]
    again.restore_refused()
    assert again.flush()
    assert answering.got[-1].node_ids == [["n3"]]
    again.close()
    assert list(spool.iterdir()) == []


def test_refused_ones_can_be_discarded(make_outbox: MakeOutbox, answering: Scripted, spool: Path) -> None:
    answering.script = [refuse("a")]
    outbox = make_outbox()
    put(outbox, "a")
    assert not outbox.flush()
    outbox.discard_refused()
    assert outbox.flush()
    outbox.close()
    assert list(spool.iterdir()) == []


def test_what_is_too_large_is_split(make_outbox: MakeOutbox, answering: Scripted) -> None:
    answering.script = [at_most(3)] * 200
    outbox = make_outbox()
    put(outbox, *names(40))
    assert outbox.flush()
    taken = [got for got in answering.got if sum(map(len, got.node_ids)) <= 3]
    assert [node for got in taken for line in got.node_ids for node in line] == names(40)
    keys_name_bytes(answering)


def test_one_node_that_is_too_large_is_refused(make_outbox: MakeOutbox, answering: Scripted) -> None:
    answering.script = [problem(413, "payload_too_large")]
    outbox = make_outbox()
    put(outbox, "a")
    assert [refusal.status for refusal in outbox.flush().refused] == [413]


def test_what_the_service_cannot_digest_is_set_aside(make_outbox: MakeOutbox, answering: Scripted) -> None:
    answering.script = [problem(500, "internal")] * SERVER_FAULTS
    outbox = make_outbox(backoff=Backoff(first=0.0, most=0.0))
    put(outbox, "a")
    assert [refusal.status for refusal in outbox.flush().refused] == [500]
    put(outbox, "b")
    outbox.flush()
    assert answering.got[-1].node_ids == [["b"]]


def test_whole_requests_keep_their_place(make_outbox: MakeOutbox, answering: Scripted) -> None:
    answering.script = [
        problem(503, "unavailable"),
        stored,
        problem(503, "unavailable"),
        Reply(200, b"{}", "application/json"),
        problem(409, "invalid_state"),
    ]
    outbox = make_outbox(NOWHERE)
    put(outbox, "a")
    outbox.put("/v1/agents/bot/actions/act-1/outcome", b'{"status":"success"}', "key-1")
    outbox.put("/v1/agents/bot/actions/act-2/outcome", b"{}", "key-2", "text/plain")
    put(outbox, "b")
    outbox.close(0)
    # The service has moved here: the journal is for the same agent under another URL, so it is given by hand.
    adopted = make_outbox(spool=outbox.folder)
    [path] = outbox.folder.glob("*.journal")
    journal = Journal.adopt(path)
    assert journal is not None
    adopted._adopted.append(journal)
    adopted.restore_refused()
    report = adopted.flush()
    assert [got.path.rpartition("/")[2] for got in answering.got] == [
        "traces", "traces", "outcome", "outcome", "outcome", "traces"
    ]  # fmt: skip
    outcome = answering.got[3]
    assert (outcome.key, outcome.body, outcome.headers["content-type"]) == (
        "key-1", b'{"status":"success"}', "application/json"
    )  # fmt: skip
    assert answering.got[4].headers["content-type"] == "text/plain"
    assert [(refusal.status, refusal.path) for refusal in report.refused] == [
        (409, "/v1/agents/bot/actions/act-2/outcome")
    ]


@pytest.mark.parametrize("bound", [{"max_queued": 2}, {"max_queued_bytes": 30}])
def test_recording_waits_when_the_journal_is_full(
    make_outbox: MakeOutbox, answering: Scripted, bound: dict[str, int]
) -> None:
    let_go = threading.Event()
    answering.script = [lambda got: stored(got) if let_go.wait(20) else Reply(500)]
    outbox = make_outbox(**bound)
    put(outbox, "n0", "n1")
    with pytest.raises(OutboxFullError, match="was not recorded"):
        put(outbox, "lost", timeout=0.01)
    blocked = threading.Thread(target=put, args=(outbox, "n2"))
    blocked.start()
    blocked.join(0.05)
    assert blocked.is_alive()
    let_go.set()
    blocked.join(20)
    assert outbox.flush()
    assert arrived(answering) == names(3)


def test_closing_wakes_who_waits_for_room(make_outbox: MakeOutbox) -> None:
    outbox = make_outbox(NOWHERE, max_queued=1)
    put(outbox, "a")
    caught: list[BaseException] = []

    def record() -> None:
        try:
            put(outbox, "b")
        except OutboxClosedError as error:
            caught.append(error)

    blocked = threading.Thread(target=record)
    blocked.start()
    outbox.close(0)
    blocked.join(20)
    assert len(caught) == 1
    assert outbox.flush().waiting == 1


def test_what_is_left_is_sent_first_by_the_next_one(
    make_outbox: MakeOutbox, answering: Scripted, spool: Path
) -> None:
    answering.script = [problem(503, "unavailable")] * 10_000
    left = make_outbox()
    put(left, "old 1", "old 2")
    while not answering.got:
        left.flush(0.01)
    assert left.close(0).waiting == 2
    fixed = answering.got[0]
    answering.got.clear()
    answering.script.clear()
    outbox = make_outbox()
    put(outbox, "new")
    assert outbox.flush()
    assert (answering.got[0].key, answering.got[0].body) == (fixed.key, fixed.body), "as it was fixed"
    assert arrived(answering) == ["old 1", "old 2", "new"]
    outbox.close()
    assert list(spool.iterdir()) == []


def test_what_several_left_is_sent_in_their_order(make_outbox: MakeOutbox, answering: Scripted) -> None:
    target = service(answering.url, "token-of-the-tests", "bot", {})
    folder = make_outbox().folder
    for number in range(5):
        journal = Journal.create(folder, target)
        journal.add(_entry(b'{"node_id":"n%d"}' % number))
        journal.close()
    assert make_outbox().flush()
    assert arrived(answering) == names(5)


def test_a_living_process_keeps_its_journal(make_outbox: MakeOutbox, spool: Path) -> None:
    owner = make_outbox(NOWHERE)
    put(owner, "a")
    [path] = spool.glob("*.journal")
    assert Journal.adopt(path) is None
    owner.close(0)
    journal = Journal.adopt(path)
    assert journal is not None
    assert journal.waiting == 1
    assert Journal.adopt(path) is None
    journal.close()


def test_journals_of_others_are_left_alone(make_outbox: MakeOutbox, answering: Scripted, spool: Path) -> None:
    """Another agent, another service, or the same agent's name in another tenant."""
    tokens = [f"agt_{tenant * 32}.bot.{'0' * 64}" for tenant in "ab"]
    for other in (
        service(answering.url, "token-of-the-tests", "other", {}),
        service(NOWHERE, "token-of-the-tests", "bot", {}),
        *(service(answering.url, token, None, {}) for token in tokens),
    ):
        journal = Journal.create(spool, other)
        journal.add(_entry(b'{"node_id":"not yours"}'))
        journal.close()
    outbox = make_outbox()
    put(outbox, "mine")
    assert outbox.flush()
    assert arrived(answering) == ["mine"]
    outbox.close()
    assert len(list(spool.glob("*.journal"))) == 4


def test_files_are_for_the_owner_alone_and_hold_no_token(make_outbox: MakeOutbox, spool: Path) -> None:
    outbox = make_outbox(NOWHERE)
    put(outbox, *names(50))
    while "trouble" not in repr(outbox.flush(0.05)):
        pass
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700
    files = list(spool.iterdir())
    assert {path.suffix for path in files} >= {".journal", ".lock", ".journal-wal"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert b"token-of-the-tests" not in path.read_bytes()
    outbox.close(0)


def test_a_planted_file_is_not_adopted(make_outbox: MakeOutbox, spool: Path, tmp_path: Path) -> None:
    outbox = make_outbox(NOWHERE)
    put(outbox, "a")
    outbox.close(0)
    [path] = spool.glob("*.journal")
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert Journal.adopt(path) is None


@pytest.mark.parametrize("damage", ["version", "bytes"])
def test_a_journal_that_cannot_be_read_stays_and_hinders_nothing(
    make_outbox: MakeOutbox,
    answering: Scripted,
    spool: Path,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = make_outbox(NOWHERE)
    put(left, "a")
    left.close(0)
    [path] = spool.glob("*.journal")
    path = path.rename(path.with_name(path.name.replace(path.name[:16], _identity(answering))))
    (lock,) = spool.glob("*.lock")
    lock.rename(path.with_suffix(".lock"))
    if damage == "version":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        path.write_bytes(b"no database" * 1_000)
    before = path.read_bytes()
    outbox = make_outbox()
    put(outbox, "b")
    assert outbox.flush()
    assert arrived(answering) == ["b"]
    assert "cannot be adopted" in caplog.text
    assert path.read_bytes() == before


def test_a_file_whose_making_was_cut_short_is_removed(
    make_outbox: MakeOutbox, answering: Scripted, spool: Path
) -> None:
    spool.mkdir(parents=True)
    stem = f"{_identity(answering)}-1"
    (spool / f"{stem}.journal").touch()
    (spool / f"{stem}.lock").touch()
    make_outbox()
    assert list(spool.iterdir()) == []


def test_a_journal_whose_lock_was_removed_is_adopted_once_its_owner_is_gone(
    make_outbox: MakeOutbox, spool: Path
) -> None:
    owner = make_outbox(NOWHERE)
    put(owner, "a")
    [path] = spool.glob("*.journal")
    path.with_suffix(".lock").unlink()
    owner.close(0)
    journal = Journal.adopt(path)
    assert journal is not None
    assert journal.waiting == 1
    journal.close()


def test_a_folder_that_cannot_be_written_is_said(make_outbox: MakeOutbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outbox = make_outbox(spool=tmp_path / "file" / "spool")
    with pytest.raises(SpoolError, match="spool"):
        put(outbox, "a")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # it is what is tested
def test_a_forked_child_has_a_journal_of_its_own(
    make_outbox: MakeOutbox, answering: Scripted, spool: Path
) -> None:
    let_go = threading.Event()
    answering.script = [lambda got: stored(got) if let_go.wait(20) else Reply(500)]
    outbox = make_outbox()
    put(outbox, "parent 1")
    while not answering.got:
        outbox.flush(0.01)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:  # pragma: no cover  another process
        code = 1
        try:
            assert outbox.waiting == 0
            put(outbox, "child")
            code = 0 if outbox.flush() and outbox.close(5) else 2
        finally:
            os._exit(code)
    put(outbox, "parent 2")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    let_go.set()
    assert outbox.flush()
    assert sorted(arrived(answering)) == ["child", "parent 1", "parent 2"]
    outbox.close()
    assert list(spool.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # it is what is tested
def test_a_child_that_outlives_its_parent_does_not_keep_the_journal(
    make_outbox: MakeOutbox, spool: Path
) -> None:
    outbox = make_outbox(NOWHERE)
    put(outbox, "a")
    reading, writing = os.pipe()
    begun, begins = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:  # pragma: no cover  another process
        os.close(writing)
        os.write(begins, b"x")
        os.read(reading, 1)
        os._exit(0)
    assert os.read(begun, 1) == b"x"  # what a child does first, it has done
    outbox.close(0)
    [path] = spool.glob("*.journal")
    journal = Journal.adopt(path)
    for end in (writing, reading, begun, begins):
        os.close(end)
    os.waitpid(child, 0)
    assert journal is not None
    assert journal.waiting == 1
    journal.close()


def test_the_end_of_the_program_sends_what_is_queued(answering: Scripted, spool: Path) -> None:
    program = (
        "from app.client import LineageTracker\n"
        f"tracker = LineageTracker({answering.url!r}, 'token', 'bot', spool={str(spool)!r})\n"
        "for number in range(3):\n"
        "    with tracker.node('OUTPUT', f'n{number}'): pass\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
    sent = [node["name"] for got in answering.got for line in got.body.splitlines() for node in _nodes(line)]
    assert sent == names(3)
    assert list(spool.iterdir()) == []


def test_the_wait_after_failures_grows_and_is_never_less_than_asked_for() -> None:
    backoff = Backoff(first=1.0, most=8.0, slow=60.0)
    for _ in range(50):
        delays = [backoff.delay(failures, slowly=False, retry_after=None) for failures in (1, 2, 3, 4, 900)]
        for delay, most in zip(delays, (1, 2, 4, 8, 8), strict=True):
            assert most / 2 <= delay <= most
        assert backoff.delay(1, slowly=False, retry_after=30.0) >= 30
        slow = [backoff.delay(failures, slowly=True, retry_after=None) for failures in (1, 2, 900)]
        for delay, most in zip(slow, (1, 2, 60), strict=True):
            assert most / 2 <= delay <= most
        assert backoff.delay(1, slowly=False, retry_after=1e9) <= MAX_RETRY_AFTER_SECS + 1


def test_a_flush_does_not_hurry_a_service_that_asked_to_wait(
    make_outbox: MakeOutbox, answering: Scripted
) -> None:
    answering.script = [problem(503, "unavailable", Retry_After="3600")]
    outbox = make_outbox()
    put(outbox, "a")
    while outbox._not_before == 0:
        outbox.flush(0.01)
    assert outbox.flush(0.1).waiting == 1
    assert len(answering.got) == 1


def test_a_missing_agent_is_asked_for_again_soon_and_flush_says_so(
    make_outbox: MakeOutbox, answering: Scripted
) -> None:
    """The defaults: an operator who makes the agent a little later is not waited for by minutes."""
    assert Backoff().delay(1, slowly=True, retry_after=None) <= 0.5
    assert Backoff().delay(900, slowly=True, retry_after=None) <= 10
    answering.script = [problem(404, "not_found")] * 2
    outbox = make_outbox(backoff=Backoff())
    put(outbox, "a")
    report = outbox.flush(0.05)
    while not answering.got:
        report = outbox.flush(0.01)
    report = outbox.flush(0.01)
    assert (report.waiting, bool(report)) == (1, False)
    assert report.trouble is not None
    assert "404 not_found" in report.trouble or "has not answered yet" in report.trouble
    assert outbox.flush(20)
    assert arrived(answering) == ["a"]


def test_flush_returns_in_time_although_the_service_says_nothing(
    make_outbox: MakeOutbox, answering: Scripted
) -> None:
    over = threading.Event()
    answering.script = [lambda got: stored(got) if over.wait(20) else Reply(None)]
    outbox = make_outbox()
    put(outbox, "a", "b")
    while not answering.got:
        outbox.flush(0.01)
    report = outbox.flush(0.05)
    over.set()
    assert report.waiting == 2
    assert report.trouble == f"{answering.url} has not answered yet"
    assert outbox.flush(20)


def test_a_key_that_stands_for_something_else_is_given_up(
    make_outbox: MakeOutbox, answering: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    answering.script = [problem(503, "unavailable"), problem(409, "idempotency_conflict")]
    outbox = make_outbox(NOWHERE)
    put(outbox, "a", "b")
    outbox.close(0)
    adopted = make_outbox()
    adopted._adopted.append(_journal(outbox))
    put(adopted, "c")
    assert adopted.flush(20)
    first, second, third, *_ = answering.got
    assert (first.key, first.body) == (second.key, second.body)
    assert third.body == first.body
    assert third.key != first.key
    assert "sent under another key" in caplog.text
    assert adopted.refused == []
    keys_name_bytes(answering)


def test_a_service_that_refuses_every_key_is_not_hurried(
    make_outbox: MakeOutbox, answering: Scripted
) -> None:
    answering.script = [problem(409, "idempotency_conflict")] * 10_000
    outbox = make_outbox(backoff=Backoff(first=3_600, slow=3_600))
    put(outbox, "a")
    while outbox._trouble is None:
        threading.Event().wait(0.005)
    assert "409 idempotency_conflict" in outbox._trouble
    assert outbox._not_before > time.monotonic() + 1_000


def test_a_conflict_of_a_whole_request_is_a_refusal(make_outbox: MakeOutbox, answering: Scripted) -> None:
    answering.script = [problem(409, "idempotency_conflict")]
    outbox = make_outbox()
    outbox.put("/v1/agents/bot/actions/act-1/outcome", b'{"status":"success"}', "key-1")
    assert [refusal.status for refusal in outbox.flush().refused] == [409]


_STEPS: dict[str, Reply | Callable[[Got], Reply]] = {
    "stored": stored,
    "lost": Reply(None),
    "413": at_most(1),
    "refuse": refuse("n1"),
    "alone": refuse("n0", "n2"),
    "404": problem(404, "not_found"),
    "409": problem(409, "idempotency_conflict"),
}

STEPS = [*_STEPS, "restart"]


@given(st.lists(st.sampled_from(STEPS), max_size=12))
@settings(max_examples=12, deadline=None)
def test_whatever_happens_no_key_names_other_bytes(steps: list[str]) -> None:
    """A small world: batches are split, parts of them refused, answers lost, the program begun anew."""
    nodes = names(6)
    with TemporaryDirectory() as folder, scripted() as answering:
        target = service(answering.url, "token-of-the-tests", "bot", {})

        def made() -> Outbox:
            return Outbox(target, spool=folder, backoff=Backoff(0.0, 0.0, 0.0))

        outbox = made()
        put(outbox, *nodes[:3])
        for number, step in enumerate(steps):
            if step == "restart":
                outbox.end(outbox.flush(0))
                outbox = made()
                put(outbox, f"{nodes[3]}-{number}", nodes[4])
            answering.script += [_STEPS[step]] if step in _STEPS else []
        put(outbox, nodes[5])
        while (report := outbox.flush(20)).waiting:
            pass
        outbox.end(report)
        keys_name_bytes(answering)
        sent = {node for got in answering.got for line in got.node_ids for node in line}
        assert sent >= {*nodes[:3], nodes[5]}


# --- a full disk ------------------------------------------------------------


def fill(outbox: Outbox) -> None:
    """The disk is full: the journal's file may not grow by a page (SQLITE_FULL)."""
    assert outbox._own is not None
    pages = outbox._own._connection.execute("PRAGMA page_count").fetchone()[0]
    outbox._own._connection.execute(f"PRAGMA max_page_count = {pages}")


def big(outbox: Outbox, *names: str) -> None:
    for name in names:
        outbox.put_node("s", name, json.dumps({"node_id": name, "is": "x" * 20_000}).encode())


def test_on_a_full_disk_it_goes_on_in_memory_and_says_so(
    make_outbox: MakeOutbox, answering: Scripted, caplog: pytest.LogCaptureFixture, spool: Path
) -> None:
    answering.script = [problem(503, "unavailable")] * 10_000
    outbox = make_outbox()
    put(outbox, "on disk")
    while not answering.got:
        outbox.flush(0.01)
    fill(outbox)
    big(outbox, *names(5))
    report = outbox.flush(0.02)
    assert report.waiting == 6
    assert "the disk is full" in str(report.trouble)
    assert "database or disk is full" in caplog.text
    assert caplog.text.count("is in memory only") == 1, "said once"
    answering.script.clear()
    assert outbox.flush()
    assert arrived(answering) == ["on disk", *names(5)]
    outbox.close()
    assert list(spool.iterdir()) == []


def test_when_there_is_room_again_it_is_on_disk(
    make_outbox: MakeOutbox, answering: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.client.journal.BACK_SECS", 0.0)
    outbox = make_outbox(NOWHERE)
    put(outbox, "a")
    fill(outbox)
    big(outbox, "b")
    own = outbox._own
    assert own is not None
    assert own._disk is not None
    put(outbox, "c")
    assert own._disk is not None, "no room yet"
    own._disk.execute("PRAGMA max_page_count = 100000")
    put(outbox, "d")
    assert not own.in_memory
    outbox.close(0)
    adopted = make_outbox()
    adopted._adopted.append(_journal(outbox))
    put(adopted, "e")
    assert adopted.flush()
    assert arrived(answering) == ["a", "b", "c", "d", "e"]


def test_what_ends_in_memory_only_is_an_error_in_the_log(
    make_outbox: MakeOutbox, caplog: pytest.LogCaptureFixture, spool: Path
) -> None:
    outbox = make_outbox(NOWHERE)
    put(outbox, "a")
    fill(outbox)
    big(outbox, "b")
    outbox.close(0)
    assert "2 entries that are only in memory end with this program" in caplog.text
    [path] = spool.glob("*.journal")
    journal = Journal.adopt(path)
    assert journal is not None
    assert journal.waiting == 1, "what was on disk still is"
    journal.close()


def test_what_is_sent_again_after_a_kill_on_a_full_disk_has_its_first_key(
    make_outbox: MakeOutbox, answering: Scripted, spool: Path
) -> None:
    """What was fixed in memory is made again of the same entries, and so under the same key."""
    target = service(answering.url, "token-of-the-tests", "bot", {})
    journal = Journal.create(spool, target)
    journal.add(_entry(b'{"node_id":"n0"}'))
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")
    big_one = _entry(b'{"node_id":"n1","is":"%s"}' % (b"x" * 50_000))
    journal.add(big_one)
    journal._transact(lambda connection: connection.execute("DELETE FROM entries WHERE id = 2"))
    sent = journal.next("/v1/agents/bot/traces", 500)
    assert sent is not None
    assert journal._disk is not None
    journal._disk.close()  # killed: nothing of the memory is left
    os.close(journal._flock)  # type: ignore[arg-type]  # it has a file
    assert make_outbox().flush()
    assert [(got.key, got.body) for got in answering.got] == [(sent.key, sent.body)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system in memory with these options."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"small-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_full(
    make_outbox: MakeOutbox,
    answering: Scripted,
    small_disk: Callable[[str], Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    answering.script = [problem(503, "unavailable")] * 10_000
    outbox = make_outbox(spool=small_disk("size=256k") / "spool")
    big(outbox, *names(40))
    assert "is in memory only" in caplog.text
    answering.script.clear()
    assert outbox.flush()
    assert arrived(answering) == names(40)


@pytest.mark.parametrize("options", ["size=4k", "nr_inodes=1", "nr_inodes=2"])
def test_on_a_disk_that_is_full_from_the_beginning_there_is_no_file(
    options: str, make_outbox: MakeOutbox, answering: Scripted, small_disk: Callable[[str], Path]
) -> None:
    """No room for the file, none for the folder, none for the file beside it."""
    over = threading.Event()
    answering.script = [lambda got: stored(got) if over.wait(20) else Reply(None)]
    outbox = make_outbox(spool=small_disk(options) / "spool")
    put(outbox, "a", "b")
    own = outbox._own
    assert own is not None
    assert own.is_without_a_file
    over.set()
    assert outbox.flush()
    assert arrived(answering) == ["a", "b"]
    assert outbox._own is None, "the next one tries the disk again"


def test_logging_is_for_programs_that_want_it() -> None:
    assert logging.getLogger("trails.client").handlers == []


def _entry(body: bytes):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from app.client.batch import Entry

    return Entry(0, body, "s", "n")


def _journal(closed: Outbox) -> Journal:
    """The one that a closed outbox left, which was for another URL."""
    [path] = closed.folder.glob("*.journal")
    journal = Journal.adopt(path)
    assert journal is not None
    return journal


def _identity(answering: Scripted) -> str:
    from app.client.journal import identity

    return identity(service(answering.url, "token-of-the-tests", "bot", {}))


def _nodes(line: bytes) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(line)["trace_tree"]
    return found


CHILD = """
import multiprocessing, os, sys
from app.client import LineageTracker
tracker = LineageTracker(sys.argv[1], "token", "bot", spool=sys.argv[2])

def work(end):
    with tracker.node("OUTPUT", "of a child"):
        pass
    if end is not None:
        os._exit(end)

context = multiprocessing.get_context("fork")
child = context.Process(target=work, args=(None if sys.argv[3] == "ends" else 0,))
child.start()
child.join()
if sys.argv[3] == "ends":
    os._exit(0)  # the parent does nothing for it
assert tracker.flush()
"""


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_what_a_child_of_multiprocessing_recorded_is_sent(how: str, answering: Scripted, spool: Path) -> None:
    """By itself when it ends; by its parent's next flush when it could not."""
    program = [sys.executable, "-W", "ignore", "-c", CHILD, answering.url, str(spool), how]
    subprocess.run(program, cwd=ROOT, check=True, timeout=60)
    assert [len(line) for got in answering.got for line in got.node_ids] == [1]
