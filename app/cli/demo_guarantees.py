"""The guarantees that the demo shows, each with the way in which ``--break`` spoils it.

A guarantee is a function that plays its part and returns None when it held, else what happened instead. With
its name in ``broken`` it really does something else (it skips the tampering, raises the limit, switches the
triggers off), so that the demo's own checks are seen to fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import msgspec
import psycopg
from rich.console import Console
from rich.text import Text

from app.chain.verdict import Verdict
from app.cli.demo_stage import Answer, Stage
from app.cli.outcome import print_run
from app.cli.verify_database import verify_database
from app.text import printable
from app.verification.anchors import Anchor
from app.verification.outcome import Run

AGENT: Final = "scout"

CLASSIC_QUERY: Final = """\
SELECT session_id, created_at
FROM agent_audit_trails,
     jsonb_to_recordset(trace_data->'trace_tree') AS x(node_type text, outputs jsonb)
WHERE x.node_type = 'TOOL_CALL' AND x.outputs->>'status' = 'failed';
"""
"""The auditor's query of a plain audit table, unchanged."""

_TRAIL: Final = "trails.agent_audit_trails"
_OURS: Final = f"agent_id = '{AGENT}'"
_TRIGGERS: Final = ("refuse_change_statement", "refuse_change_row", "check_append")
_SENDINGS_TRIGGERS: Final = ("check_sendings", "refuse_change_statement", "refuse_change_row")


class Play:
    """The demo under way: the stage, what was seen so far, and what is broken on purpose."""

    def __init__(self, stage: Stage, console: Console, broken: str | None) -> None:
        self.stage = stage
        self.console = console
        self.broken = broken
        self.session_id = str(uuid4())
        self.agent_token = ""
        self.head: dict[str, Any] = {}
        self.before: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """One line of the story."""
        self.console.print(Text(printable(text)))

    def ask(self, tool: str, tool_input: object, *, key: str | None = None) -> dict[str, Any]:
        """The agent asks the guard; returns the decision."""
        body = {"tool": tool, "input": tool_input, "session_id": self.session_id}
        answer = self.stage.call(f"/v1/agents/{AGENT}/actions", body, token=self.agent_token, key=key)
        decision = _body(answer)
        reason = decision.get("reason", {}).get("code", "")
        self.say(f"  {tool}: {decision['decision']}{f' ({reason})' if reason else ''}")
        return decision

    def report(self, action_id: str, status: str, detail: str = "") -> Answer:
        """How an allowed action went."""
        body = {"status": status, "detail": detail}
        return self.stage.call(f"/v1/agents/{AGENT}/actions/{action_id}/outcome", body)

    def status(self) -> dict[str, Any]:
        """The agent's standing."""
        return _body(self.stage.call(f"/v1/agents/{AGENT}"))

    def verify(self, url: str, *anchors: Anchor) -> Run:
        """What ``trails verify`` says of a database, printed."""
        run = asyncio.run(
            verify_database(
                self.stage.environment(url),
                agent_id=None,
                tenant=None,
                pinned=(),
                anchors=anchors,
                progress=lambda _: None,
            )
        )
        print_run(run, self.console)
        return run


def _policy(play: Play) -> str | None:
    """What the policy says is what happens: allowed, held for a person, denied."""
    policy: dict[str, Any] = {
        "budget": 50,
        "scar_limit": 1_000 if play.broken == "termination" else 10,
        "tools": {"search": {"cost": 1}, "send_email": {"cost": 5, "requires_approval": True}},
    }
    if play.broken == "policy":
        policy["tools"]["drop_database"] = {"cost": 1}
    created = _body(play.stage.call("/v1/agents", {"agent_id": AGENT, "policy": policy}))
    play.agent_token = created["token"]
    first = play.ask("search", {"query": "quarterly figures"})
    play.report(first["action_id"], "success", "3 documents")
    denied = play.ask("drop_database", {"name": "production"})
    held = play.ask("send_email", {"to": "board@example.com"})
    found = [first["decision"], denied["decision"], held["decision"]]
    expected = ["allowed", "denied", "pending_approval"]
    return None if found == expected else f"decisions were {found} instead of {expected}"


def _approval(play: Play) -> str | None:
    """An agent cannot approve its own action; an operator can."""
    pending = _body(play.stage.call(f"/v1/agents/{AGENT}/actions/pending"))["pending"]
    action_id = pending[0]["action"]["action_id"]
    path, body = f"/v1/agents/{AGENT}/actions/{action_id}/approve", {"approver": "ana", "note": "go ahead"}
    token = None if play.broken == "approval" else play.agent_token
    own = play.stage.call(path, body, token=token)
    play.say(f"  the agent approves {action_id} itself: HTTP {own.status}")
    if own.status != 403:
        return f"the approval was answered with HTTP {own.status} instead of 403"
    approved = _body(play.stage.call(path, body))
    play.say(f"  ana approves it: {approved['decision']}")
    play.report(action_id, "success", "sent")
    return (
        None if approved["decision"] == "allowed" else f"the operator's approval gave {approved['decision']}"
    )


def _idempotency(play: Play) -> str | None:
    """A client that lost the answer and asks again is charged once."""
    before = play.status()["spent"]
    keys = ("lost", "another") if play.broken == "idempotency" else ("lost", "lost")
    ids = {play.ask("search", {"query": "again"}, key=key)["action_id"] for key in keys}
    charged = play.status()["spent"] - before
    return (
        None if (len(ids), charged) == (1, 1) else f"{len(ids)} actions were made and {charged} was charged"
    )


def _outcome(play: Play) -> str | None:
    """An action has one outcome; the first word stands."""
    action_id = play.ask("search", {"query": "weather"})["action_id"]
    # "unknown" is the one outcome that another may follow.
    play.report(action_id, "unknown" if play.broken == "outcome" else "success")
    second = play.report(action_id, "failure", "changed my mind")
    play.say(f"  a second outcome of {action_id}: HTTP {second.status}")
    return None if second.status == 409 else f"the second outcome was answered with HTTP {second.status}"


def _query(play: Play) -> str | None:
    """The classic SQL query finds the failed call, unchanged."""
    action_id = play.ask("search", {"query": "archive"})["action_id"]
    play.report(action_id, "success" if play.broken == "query" else "failure", "connection reset")
    play.console.print(Text(CLASSIC_QUERY.rstrip(), style="cyan"))
    with play.stage.connect() as connection:
        rows = connection.execute(CLASSIC_QUERY.encode()).fetchall()
    for session_id, created_at in rows:
        play.say(f"  {session_id}  {created_at.isoformat()}")
    expected = {play.session_id}
    found = {str(session_id) for session_id, _ in rows}
    return None if found == expected and rows else f"it found {len(rows)} rows of sessions {sorted(found)}"


def _termination(play: Play) -> str | None:
    """Harm ends the agent for good: it is denied from then on."""
    action_id = play.ask("search", {"query": "people"})["action_id"]
    _body(play.report(action_id, "harmful", "published private data"))
    after = play.ask("search", {"query": "more"})
    status = play.status()
    play.head, play.before = status["head"], status
    play.say(f"  alive: {status['alive']}, because: {status['termination_reason']}")
    if status["alive"] or after.get("reason", {}).get("code") != "terminated":
        return f"the agent is alive: {status['alive']}, and its next request was {after['decision']}"
    return None


def _append_only(play: Play) -> str | None:
    """Even the superuser's UPDATE is refused while the triggers stand."""
    url = play.stage.copy("demo_append_only")
    with play.stage.connect(url) as connection:
        if play.broken == "append-only":
            _switch_triggers(connection, on=False)
        try:
            # A change that changes nothing: no CHECK minds, only the triggers do.
            connection.execute(f"UPDATE {_TRAIL} SET actor = actor")  # noqa: S608  a constant
        except psycopg.Error as error:
            play.say(f"  UPDATE: {error.diag.message_primary}")
            return None if error.sqlstate == "TR001" else f"refused for another reason: {error}"
    return "the UPDATE went through"


def _verification(play: Play) -> str | None:
    """What was recorded verifies: every record, every column, every trigger."""
    if play.broken == "verification":
        with play.stage.connect() as connection:
            connection.execute(f"ALTER TABLE {_TRAIL} DISABLE TRIGGER check_append")
    verdict = play.verify(play.stage.admin_url).verdict
    if play.broken == "verification":
        with play.stage.connect() as connection:
            _switch_triggers(connection, on=True)
    return None if verdict is Verdict.VERIFIED else f"the verdict is: {verdict}"


def _tampering(play: Play) -> str | None:
    """A changed record is found and named, although hash, CHECKs and triggers were set right again."""
    url = play.stage.copy("demo_tampered")
    with play.stage.connect(url) as connection:
        seq = _seq_of(connection, "connection reset") if play.broken != "query" else 5
        play.say(f"  a superuser rewrites record {seq}, with a new hash, and switches the triggers on again")
        if play.broken != "tampering":
            _switch_triggers(connection, on=False)
            _rewrite(connection, seq)
            _switch_triggers(connection, on=True)
    run = play.verify(url)
    faults = [fault for outcome in run.outcomes if outcome.report for fault in outcome.report.first_faults]
    if run.verdict is not Verdict.TAMPERED or not faults:
        return f"the verdict is: {run.verdict}"
    return None if faults[0].seq == seq else f"record {faults[0].seq} was named instead of {seq}"


def _cut(play: Play) -> str | None:
    """A tail that was cut is found by a head that was kept elsewhere."""
    url = play.stage.copy("demo_cut")
    last = int(play.head["seq"]) - 3
    with play.stage.connect(url) as connection:
        _switch_triggers(connection, on=False)
        connection.execute(f"DELETE FROM {_TRAIL} WHERE {_OURS} AND seq > {last}")  # noqa: S608  a number
        _switch_triggers(connection, on=True)
        # And what would tell of them: the index of nodes.
        connection.execute("ALTER TABLE trails.sendings DISABLE TRIGGER ALL")
        connection.execute(f"DELETE FROM trails.sendings WHERE seq > {last}")  # noqa: S608  a number
        _switch_triggers(connection, on=True, table="trails.sendings", names=_SENDINGS_TRIGGERS)
    play.say("  a superuser deletes the last three records without a trace; the database alone cannot know:")
    play.verify(url)
    kept = Anchor(play.head["seq"], play.head["hash"], agent_id=AGENT)
    play.say(f"  with the head that the operator kept ({kept.seq}:{kept.hash[:16]}…):")
    verdict = play.verify(url, *([] if play.broken == "cut" else [kept])).verdict
    return None if verdict is Verdict.INCOMPLETE else f"the verdict is: {verdict}"


def _restart(play: Play) -> str | None:
    """A server that was killed and started again remembers: nothing is refunded, nobody revived."""
    if play.broken == "restart":
        with play.stage.connect() as connection:
            _switch_triggers(connection, on=False)
            connection.execute(f"DELETE FROM {_TRAIL} WHERE {_OURS} AND seq > 3")  # noqa: S608  a constant
            _switch_triggers(connection, on=True)
    play.stage.start()
    status = play.status()
    before, after = (
        {name: found.get(name) for name in ("alive", "spent")} for found in (play.before, status)
    )
    play.say(f"  after the restart: {after}; before: {before}")
    return None if after == before else f"it was {before} and is {after}"


def _switch_triggers(
    connection: psycopg.Connection[Any],
    *,
    on: bool,
    table: str = _TRAIL,
    names: tuple[str, ...] = _TRIGGERS,
) -> None:
    how = "ENABLE ALWAYS" if on else "DISABLE"
    changes = ", ".join(f"{how} TRIGGER {name}" for name in names)
    connection.execute(f"ALTER TABLE {table} {changes}".encode())


def _seq_of(connection: psycopg.Connection[Any], text: str) -> int:
    row = connection.execute(
        f"SELECT min(seq) FROM {_TRAIL} WHERE kind = 'outcome' AND signed_text LIKE %s",  # noqa: S608
        (f"%{text}%",),
    ).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def _rewrite(connection: psycopg.Connection[Any], seq: int) -> None:
    """Changes what a record says, and its hash with it, so that every CHECK holds."""
    row = connection.execute(
        f"SELECT signed_text FROM {_TRAIL} WHERE {_OURS} AND seq = %s",  # noqa: S608
        (seq,),
    ).fetchone()
    text = str(row[0]) if row else ""
    changed = text.replace('"payload":{', '"payload":{"Note":"nothing to see here",', 1)
    connection.execute(
        f"UPDATE {_TRAIL} SET signed_text = %s, hash = encode(sha256(convert_to("  # noqa: S608
        f"E'lineage-audit-v1\\n' || %s, 'UTF8')), 'hex') WHERE {_OURS} AND seq = %s",
        (changed, changed, seq),
    )


def _body(answer: Answer) -> dict[str, Any]:
    if answer.status != 200:
        raise UnexpectedAnswerError(f"HTTP {answer.status}: {answer.body.get('error', answer.body)}")
    return answer.body


class UnexpectedAnswerError(Exception):
    """The service refused what it should do; the guarantee that asked for it did not hold."""


class Guarantee(msgspec.Struct, frozen=True):
    """One thing that the demo shows. ``check`` returns None, or what happened instead."""

    name: str
    check: Callable[[Play], str | None]

    @property
    def says(self) -> str:
        """The guarantee in one sentence."""
        return (self.check.__doc__ or "").strip()


OVER_HTTP: Final = (
    Guarantee("policy", _policy),
    Guarantee("approval", _approval),
    Guarantee("idempotency", _idempotency),
    Guarantee("outcome", _outcome),
    Guarantee("query", _query),
    Guarantee("termination", _termination),
)
"""Shown with the server running."""

IN_THE_DATABASE: Final = (
    Guarantee("append-only", _append_only),
    Guarantee("verification", _verification),
    Guarantee("tampering", _tampering),
    Guarantee("cut", _cut),
    Guarantee("restart", _restart),
)
"""Shown after the server was killed; the last one starts it again."""

GUARANTEES: Final = OVER_HTTP + IN_THE_DATABASE
"""All, in the order of the demo."""
