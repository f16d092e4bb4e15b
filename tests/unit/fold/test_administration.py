"""The folds over an administration chain: what counts, what passes, and what is a fault."""

from __future__ import annotations

import pytest

from app.chain.link import seal, seal_all
from app.chain.record import GENESIS, Draft, VerifiedRecord
from app.chain.strict import JsonObject
from app.errors import FormatError
from app.fold import administration
from app.fold.administration import NO_STANDING, AdministrationState, TenantStanding, stand
from app.guard.kinds import ADMIN
from app.moment import from_microseconds
from tests.support.guard_chain import KEY, SECOND, START

LATER = "2030-01-01T00:00:00.000000Z"


def key(number: int, expires_at: str | None = None) -> JsonObject:
    return {
        "key_id": f"{number:016x}",
        "role": "agent",
        "agent_id": "bot",
        "name": f"key {number}",
        "created_at": "2026-09-30T08:27:35.423031Z",
        "expires_at": expires_at,
    }


def issued(number: int, expires_at: str | None = None) -> JsonObject:
    return {"act": "key_issued", "key": key(number, expires_at)}


def revoked(number: int) -> JsonObject:
    return {"act": "key_revoked", "key_id": f"{number:016x}"}


def chain(*acts: JsonObject, at: tuple[int, ...] = ()) -> list[VerifiedRecord]:
    """The records of these acts, a second apart, or at these seconds."""
    genesis = Draft(GENESIS, {"public_key": KEY.public.hex}, "root")
    records = list(seal_all([genesis], None, START, KEY))
    for number, act in enumerate(acts):
        now = START + SECOND * (at[number] if at else number + 1)
        records.append(seal(Draft(ADMIN, act, "root"), records[-1].head, now, KEY))
    return records


def standing(*acts: JsonObject) -> TenantStanding:
    now = NO_STANDING
    for record in chain(*acts):
        now = stand(now, record)
    return now


def state(*acts: JsonObject, at: tuple[int, ...] = ()) -> AdministrationState:
    found = AdministrationState()
    for record in chain(*acts, at=at):
        found.add(record)
    return found


def test_a_key_is_in_force_from_its_issue_to_its_revocation() -> None:
    assert standing(issued(1), issued(2, LATER)).keys == {f"{1:016x}": None, f"{2:016x}": 1893456000 * SECOND}
    assert set(standing(issued(1), issued(2), revoked(1)).keys) == {f"{2:016x}"}
    assert standing(revoked(1)).keys == {}


def test_a_name_is_in_use_in_any_case_while_its_key_is_in_force() -> None:
    def named(number: int, name: str, role: str, expires_at: str | None = None) -> JsonObject:
        return {"act": "key_issued", "key": {**key(number, expires_at), "role": role, "name": name}}

    found = standing(
        named(1, "Ada", "operator"), named(2, "bot", "agent"), named(3, "Straße", "writer", LATER)
    )
    end = 1893456000 * SECOND
    assert found.names_in_use(end - 1) == {"ada", "strasse"}
    assert found.names_in_use(end) == {"ada"}
    assert standing(named(1, "Ada", "operator"), revoked(1)).names_in_use(START) == frozenset()


def test_the_last_epoch_of_a_token_counts() -> None:
    def ended(agent_id: str, epoch: object) -> JsonObject:
        return {"act": "agent_token_revoked", "agent_id": agent_id, "epoch": epoch}  # type: ignore[dict-item]

    assert standing(ended("a", 1), ended("b", 1), ended("a", 2)).epochs == {"a": 2, "b": 1}
    assert standing(issued(1)).epochs == {}
    for epoch in (0, True, "1", None):
        with pytest.raises(FormatError, match="epoch"):
            standing(ended("a", epoch))


def test_the_last_word_on_a_suspension_counts() -> None:
    suspend: JsonObject = {"act": "tenant_suspended", "reason": "unpaid"}
    resume: JsonObject = {"act": "tenant_resumed", "reason": "paid"}
    for acts, suspended in (
        ((suspend,), True),
        ((suspend, resume), False),
        ((suspend, resume, suspend), True),
    ):
        assert standing(*acts).suspended is suspended
        assert state(*acts).suspended is suspended
    assert state().suspended is False


def test_what_changes_nothing_passes() -> None:
    for act in ({"act": "trail_exported", "records": 3}, {"act": "of_a_later_version"}, {}):
        assert standing(issued(1), act) == standing(issued(1))
        assert set(state(issued(1), act).keys) == {f"{1:016x}"}


def test_keys_that_expired_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "KEYS_KEPT", 3)
    over = from_microseconds(START + 3 * SECOND).isoformat(timespec="microseconds")[:26] + "Z"
    keys = standing(issued(1, over), issued(2), issued(3, LATER), issued(4)).keys
    assert set(keys) == {f"{number:016x}" for number in (2, 3, 4)}
    assert set(standing(issued(1, over), issued(2)).keys) == {f"{1:016x}", f"{2:016x}"}


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ({"act": 1}, "act: must be a string"),
        ({"act": "key_issued"}, "key: must be an object"),
        ({"act": "key_issued", "key": {}}, "key_id: is required"),
        ({"act": "key_issued", "key": {**key(1), "expires_at": "tomorrow"}}, "expires_at: must be a time"),
        ({"act": "key_revoked", "key_id": 7}, "key_id: must be a string"),
    ],
)
def test_a_malformed_act_is_refused_by_both(act: JsonObject, said: str) -> None:
    for folding in (standing, state):
        with pytest.raises(FormatError, match=said) as caught:
            folding(act)  # type: ignore[operator]
        assert caught.value.seq == 1


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ({"act": "agents_created"}, "agents: must be a list"),
        ({"act": "agents_created", "agents": [1]}, "agents: must be an object"),
        ({"act": "agents_created", "agents": [{"agent_id": "a"}]}, "log_uuid: is required"),
        ({"act": "signing_key_rotated", "from": "x"}, "to: is required"),
        ({"act": "sql_login_created", "login": "x", "name": "y"}, "created_at: is required"),
    ],
)
def test_what_only_an_audit_reads_is_read_as_strictly(act: JsonObject, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        state(act)


def test_everything_that_an_audit_compares_is_kept() -> None:
    found = state(
        {"act": "tenant_created", "slug": "acme", "name": "Acme"},
        issued(1, LATER),
        revoked(1),
        {"act": "signing_key_rotated", "from": "aa", "to": "bb"},
        {"act": "sql_login_created", "login": "l1", "name": "audit", "created_at": LATER},
        {"act": "sql_login_dropped", "login": "l1"},
        {"act": "agents_created", "agents": [{"agent_id": "bot", "log_uuid": "u", "guarded": True}]},
    )
    assert (found.tenant, found.first_key) == (("acme", "Acme"), KEY.public.hex)
    [told] = found.keys.values()
    assert (told.role, told.agent_id, told.name) == ("agent", "bot", "key 1")
    assert found.revoked[told.key_id].at == from_microseconds(START + 3 * SECOND)
    assert [(one.old, one.new, one.told.seq) for one in found.rotations] == [("aa", "bb", 4)]
    assert (list(found.logins), found.dropped) == (["l1"], {"l1"})
    assert (found.agents["bot"].log_uuid, found.agents["bot"].guarded, found.agents["bot"].told.seq) == (
        "u",
        True,
        7,
    )


def test_a_row_may_be_older_than_a_record_only_where_the_clock_was_set_back() -> None:
    at, before = from_microseconds(START + 5 * SECOND), from_microseconds(START + 4 * SECOND)
    ahead = state(issued(1), revoked(1), at=(1, 5)).revoked[f"{1:016x}"]
    assert (ahead.may_be(at), ahead.may_be(before)) == (True, False)
    back = state(issued(1), revoked(1), at=(5, 4)).revoked[f"{1:016x}"]
    assert (back.at, back.may_be(at), back.may_be(before)) == (at, True, True)
    assert not back.may_be(from_microseconds(START + 6 * SECOND))
