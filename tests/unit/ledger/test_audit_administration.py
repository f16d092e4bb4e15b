"""Each difference between records of administration, tables and registry, on its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from app.audit.administration import (
    BegunChain,
    Login,
    StoredWebhook,
    Tables,
    compare_chains,
    compare_tables,
    without_chain,
)
from app.chain.verdict import Verdict
from app.fold.administration import (
    AdministrationState,
    Rotation,
    Suspension,
    Told,
    ToldAgent,
    ToldKey,
    ToldLogin,
    ToldWebhook,
)

AT = datetime(2026, 9, 30, 8, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def after(secs: float) -> datetime:
    return AT + timedelta(seconds=secs)


def told(secs: float = 0, *, held: bool = False) -> Told:
    return Told(7, after(secs), held)


def state(**members: Any) -> AdministrationState:
    made = AdministrationState()
    made.first_key = "first"
    for name, value in members.items():
        setattr(made, name, value)
    return made


def tables(**members: Any) -> Tables:
    return Tables(**{"signing": ["first"], **members})


def said(recorded: AdministrationState, found: Tables) -> list[str]:
    differences = list(compare_tables(recorded, found))
    assert {verdict for verdict, _ in differences} <= {Verdict.TAMPERED}
    return [reason for _, reason in differences]


KEY = ToldKey("k1", "writer", None, "ci", AT, None)
LOGIN = ToldLogin("trails_auditor_1", "audit", AT)
ROW = Login("trails_auditor_1", "audit", AT, exists=True)
HOOK = StoredWebhook("tell", ("event",), None, AT, "https://example.com")
TOLD_HOOK = ToldWebhook("w1", "tell", "https://example.com", ("event",), None, Told(7, AT, False))


def test_nothing_differs_from_nothing() -> None:
    assert said(state(), tables()) == []
    assert list(compare_chains(state(), [])) == list(without_chain(Tables())) == []


@pytest.mark.parametrize(
    ("at", "held", "differs"),
    [
        (0, False, False),
        (0, True, False),
        (-1, True, False),
        (-1, False, True),
        (1, True, True),
        (1, False, True),
    ],
)
def test_a_revocation_has_the_time_of_its_record(at: float, held: bool, differs: bool) -> None:
    recorded = state(keys={"k1": KEY}, revoked={"k1": told(held=held)})
    assert bool(said(recorded, tables(keys={"k1": KEY}, revoked={"k1": after(at)}))) is differs


def test_suspensions_in_one_microsecond_stand_one_after_the_other() -> None:
    both = [Suspension(suspended=True, told=told()), Suspension(suspended=False, told=told(held=True))]
    assert said(state(suspensions=both), tables(suspensions=[(True, AT), (False, AT + TICK)])) == []
    for late in (2 * TICK, timedelta(seconds=1)):
        [reason] = said(state(suspensions=both), tables(suspensions=[(True, AT), (False, AT + late)]))
        assert reason.startswith("it was resumed at")
    apart = [both[0], Suspension(suspended=False, told=told(5))]
    assert said(state(suspensions=apart), tables(suspensions=[(True, AT), (False, after(5))])) == []
    assert len(said(state(suspensions=apart), tables(suspensions=[(True, AT), (False, AT + TICK)]))) == 1


def test_the_order_of_suspensions_counts() -> None:
    both = [Suspension(suspended=True, told=told()), Suspension(suspended=False, told=told(1))]
    [reason] = said(state(suspensions=both), tables(suspensions=[(False, AT), (True, after(1))]))
    assert reason == "the table of suspensions says resumed, suspended, the records say suspended, resumed"


def test_a_login_is_one_that_is_on_record() -> None:
    assert said(state(logins={LOGIN.login: LOGIN}), tables(logins={ROW.login: ROW}, roles={ROW.login})) == []
    gone = Login(ROW.login, "audit", AT, exists=False)
    over = state(logins={LOGIN.login: LOGIN}, dropped={LOGIN.login})
    assert said(over, tables(logins={ROW.login: gone})) == []
    # Its role may be missing because this is another cluster.
    assert said(state(logins={LOGIN.login: LOGIN}), tables(logins={ROW.login: gone})) == []
    assert said(over, tables(logins={ROW.login: ROW}, roles={ROW.login})) == [
        "SQL login trails_auditor_1 (audit) was dropped on record, and can still log in"
    ]
    # Made and ended on record without ever having been there.
    assert said(over, tables()) == []
    assert said(over, tables(roles={ROW.login})) == [
        "SQL login trails_auditor_1 (audit) is there and on record, and its row is gone"
    ]


def test_a_login_that_was_not_made_is_no_proof_of_tampering() -> None:
    [(verdict, reason)] = compare_tables(state(logins={LOGIN.login: LOGIN}), tables())
    assert verdict is Verdict.INCOMPLETE
    assert "trails sql-login drop trails_auditor_1" in reason


def test_signing_keys_are_those_of_the_rotations_in_their_order() -> None:
    rotated = state(rotations=[Rotation("first", "second", told()), Rotation("second", "third", told())])
    assert said(rotated, tables(signing=["first", "second", "third"])) == []
    assert said(rotated, tables(signing=["first", "third", "second"])) == [
        "the signing keys do not follow one another as the records of rotations say"
    ]
    assert said(rotated, tables(signing=["first", "second", "third", "planted"])) == [
        "signing key planted is in its table, and no record says that it was made"
    ]
    assert said(rotated, tables(signing=["second", "third"])) == [
        "signing key first is on record, and its row is gone"
    ]


def test_a_tenant_is_called_as_on_record() -> None:
    recorded = state(tenant=("acme", "Acme"))
    assert said(recorded, tables(named=("acme", "Acme"))) == []
    assert said(recorded, tables()) == []
    for named in (("acme", "Other"), ("other", "Acme")):
        assert len(said(recorded, tables(named=named))) == 1
    assert said(state(), tables(named=("default", "Default"))) == []


def chains(recorded: AdministrationState, *begun: BegunChain) -> list[str]:
    return [reason for _, reason in compare_chains(recorded, begun)]


BOT = ToldAgent("bot", "u1", guarded=True, told=told())


def test_a_chain_is_the_one_on_record() -> None:
    recorded = state(agents={"bot": BOT})
    assert chains(recorded, BegunChain("bot", "u1", guarded=True)) == []
    assert "(seq 7) and is gone" in chains(recorded)[0]
    for other in (BegunChain("bot", "u2", guarded=True), BegunChain("bot", "u1", guarded=False)):
        [reason] = chains(recorded, other)
        assert reason.startswith("the chain of agent bot is not the one on record (seq 7)")


def test_a_chain_that_no_record_names_counts_only_where_records_name_all() -> None:
    stray = BegunChain("stray", "u9", guarded=False, key="first", at=after(0))
    assert chains(state(), stray) == []
    assert chains(state(covers_agents=True), stray) == ["the chain of agent stray (u9) is named by no record"]


@pytest.mark.parametrize(("secs", "late"), [(0, False), (60, False), (61, True)])
@pytest.mark.parametrize("named", [True, False])
def test_a_retired_key_begins_no_chain(secs: float, late: bool, named: bool) -> None:
    recorded = state(rotations=[Rotation("first", "second", told())])
    if named:
        recorded.agents["bot"] = ToldAgent("bot", "u1", guarded=True, told=told(secs))
    # Whoever has the key can give the genesis record any time; that of the record that names it counts.
    at = after(-100 if named else secs)
    for key, expected in (("first", late), ("second", False)):
        found = chains(recorded, BegunChain("bot", "u1", guarded=True, key=key, at=at))
        assert bool(found) is expected
        assert all("begun under a signing key that was retired" in reason for reason in found)
    assert chains(recorded, BegunChain("bot", "u1", guarded=True)) == []


def test_webhooks_are_those_on_record() -> None:
    recorded = state(webhooks={"w1": TOLD_HOOK})
    assert said(recorded, tables(webhooks={"w1": HOOK})) == []
    # Without the master key nobody knows where it leads to.
    assert said(recorded, tables(webhooks={"w1": replace(HOOK, target=None, sealed=True)})) == []
    [reason] = said(recorded, tables(webhooks={"w1": replace(HOOK, target=None, agents=("bot",))}))
    assert reason == "webhook w1 (tell) differs from its record: agents, target"
    [reason] = said(recorded, tables(webhooks={"w1": replace(HOOK, created_at=after(-1))}))
    assert reason.endswith(": created_at")
    held = state(webhooks={"w1": replace(TOLD_HOOK, told=told(held=True))})
    assert said(held, tables(webhooks={"w1": replace(HOOK, created_at=after(-1))})) == []


def test_without_a_chain_no_row_is_on_record() -> None:
    rows = tables(
        keys={"k1": KEY}, revoked={"k1": AT}, suspensions=[(True, AT)], logins={ROW.login: ROW},
        webhooks={"w1": HOOK},
    )  # fmt: skip
    assert [reason.partition(" in the")[0] for _, reason in without_chain(rows)] == [
        "1 API keys", "1 revocations of API keys", "1 suspensions", "1 SQL logins", "1 webhooks",
    ]  # fmt: skip
