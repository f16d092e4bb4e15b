"""What callers send is read exactly; the message of a refusal names the member."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from app.chain.strict import JsonValue, parse
from app.errors import BadRequestError
from app.guard.bodies import AddScar, Approve, Ask, NewAgent, Reject, Report, Terminate
from app.guard.words import OutcomeStatus, Severity

SESSION = "123E4567-e89b-12d3-a456-426614174000"


def test_a_whole_ask() -> None:
    body: JsonValue = {
        "tool": "search",
        "input": {"q": [1, 2.5]},
        "cost": 3,
        "session_id": SESSION,
        "parent_id": None,
        "thought_process": "because",
    }
    assert Ask.parse(body) == Ask(
        tool="search",
        input={"q": [1, 2.5]},
        cost=3,
        session_id=UUID(SESSION),
        thought_process="because",
    )


def test_absent_input_is_null_and_absent_cost_is_left_to_the_rule() -> None:
    assert Ask.parse({"tool": "t"}) == Ask(tool="t", input=None, cost=None)


@pytest.mark.parametrize(
    "raw", ["-5", "-0.0", "1.0", "1e2", "1e308", "true", "false", '"1"', "[1]", '{"usd":1}']
)
def test_g13_strange_costs_are_refused(raw: str) -> None:
    body = parse(b'{"tool":"t","cost":' + raw.encode() + b"}").value
    with pytest.raises(BadRequestError, match=r"^cost: must be an integer >= 0$"):
        Ask.parse(body)


def test_g13_costs_end_where_a_bigint_does() -> None:
    assert Ask.parse({"tool": "t", "cost": 2**63 - 1}).cost == 2**63 - 1
    with pytest.raises(BadRequestError, match=r"^cost: must be at most 9223372036854775807$"):
        Ask.parse({"tool": "t", "cost": 2**63})


def test_g13_nan_never_gets_as_far() -> None:
    with pytest.raises(BadRequestError):
        parse(b'{"tool":"t","cost":NaN}')


@pytest.mark.parametrize(
    "name", ["d\u0435lete_file", "\uff44elete_file", "delete\u200b_file", "dele\u0301te", "\u202eelif"]
)
def test_g19_names_keep_their_exact_characters(name: str) -> None:
    assert Ask.parse({"tool": name}).tool == name


@pytest.mark.parametrize(
    ("parser", "body", "message"),
    [
        (Ask.parse, [], "body: must be an object"),
        (Ask.parse, {}, "tool: is required"),
        (Ask.parse, {"tool": None}, "tool: is required"),
        (Ask.parse, {"tool": 1}, "tool: must be a string"),
        (Ask.parse, {"tool": ""}, "tool: must have 1 to 128 characters"),
        (Ask.parse, {"tool": "é" * 129}, "tool: must have 1 to 128 characters"),
        (Ask.parse, {"tool": "t", "session_id": "x"}, "session_id: must be a UUID"),
        (
            Ask.parse,
            {"tool": "t", "session_id": "123e4567e89b12d3a456426614174000"},
            "session_id: must be a UUID",
        ),
        (Ask.parse, {"tool": "t", "parent_id": "{" + SESSION + "}"}, "parent_id: must be a UUID"),
        (Ask.parse, {"tool": "t", "parent_id": SESSION + "\n"}, "parent_id: must be a UUID"),
        (Ask.parse, {"tool": "t", "thought_process": 1}, "thought_process: must be a string"),
        (Approve.parse, {}, "approver: is required"),
        (Approve.parse, {"approver": ""}, "approver: must have 1 to 256 characters"),
        (Approve.parse, {"approver": "a" * 257}, "approver: must have 1 to 256 characters"),
        (Approve.parse, {"approver": "a", "note": {}}, "note: must be a string"),
        (Reject.parse, {"approver": "a"}, "reason: is required"),
        (
            Reject.parse,
            {"approver": "a", "reason": "r", "scar": "Minor"},
            "scar: must be one of minor, moderate,",
        ),
        (Report.parse, {}, "status: is required"),
        (Report.parse, {"status": "failed"}, "status: must be one of success, failure, harmful, unknown"),
        (Report.parse, {"status": ["success"]}, "status: must be one of success"),
        (Report.parse, {"status": "success", "detail": 1}, "detail: must be a string"),
        (AddScar.parse, {"reason": "r"}, "severity: is required"),
        (AddScar.parse, {"severity": "minor"}, "reason: is required"),
        (AddScar.parse, {"severity": "minor", "reason": "r", "action_id": 1}, "action_id: must be a string"),
        (Terminate.parse, {"by": "b"}, "reason: is required"),
        (Terminate.parse, {"reason": "r", "by": "b" * 257}, "by: must have 1 to 256 characters"),
        (
            Ask.parse,
            {"tool": "t", "inputs": {}},
            "inputs: is no member here; did you mean input? There are tool, ",
        ),
        (NewAgent.parse, {"agent_id": "a", "polcy": {}}, "polcy: is no member here"),
        (NewAgent.parse, {"agent_id": "a"}, "policy: is required; null makes an observed agent"),
    ],
)
def test_a_flaw_is_named_by_its_member(
    parser: Callable[[JsonValue], object], body: JsonValue, message: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        parser(body)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("parser", "body", "expected"),
    [
        (Ask.parse, {"tool": "é" * 128}, Ask(tool="é" * 128)),
        (Approve.parse, {"approver": "a", "note": None}, Approve("a")),
        (Approve.parse, {"approver": "a", "note": "n"}, Approve("a", "n")),
        (Reject.parse, {"approver": "a", "reason": ""}, Reject("a", "")),
        (Reject.parse, {"approver": "a", "reason": "r", "scar": "fatal"}, Reject("a", "r", Severity.FATAL)),
        (Report.parse, {"status": "failure"}, Report(OutcomeStatus.FAILURE)),
        (Report.parse, {"status": "unknown", "detail": "d"}, Report(OutcomeStatus.UNKNOWN, "d")),
        (AddScar.parse, {"severity": "minor", "reason": "r"}, AddScar(Severity.MINOR, "r")),
        (
            AddScar.parse,
            {"severity": "severe", "reason": "r", "action_id": "act-1"},
            AddScar(Severity.SEVERE, "r", "act-1"),
        ),
        (Terminate.parse, {"reason": "r", "by": "b"}, Terminate("r", "b")),
    ],
)
def test_sound_bodies(parser: Callable[[JsonValue], object], body: JsonValue, expected: object) -> None:
    assert parser(body) == expected
