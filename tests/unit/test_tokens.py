"""Bearer tokens: who they prove, and what they do not (case H18)."""

from __future__ import annotations

import ast
import inspect
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import app.tokens
from app.errors import UnauthorizedError
from app.principal import Principal, Role
from app.tokens import Tokens

TENANT, OTHER = UUID(int=1), UUID(int=2)
OPERATOR = "operator-token-of-at-least-32-characters"
TOKENS = Tokens(b"m" * 32, OPERATOR, TENANT)


def header(token: str) -> bytes:
    return b"Bearer " + token.encode()


def test_an_agents_token_proves_the_agent_of_its_tenant() -> None:
    assert TOKENS.authenticate(header(TOKENS.issue(OTHER, "mailer"))) == Principal(
        tenant_id=OTHER, role=Role.AGENT, name="mailer", agent_id="mailer"
    )


def test_the_operators_token_proves_the_operator_of_the_default_tenant() -> None:
    assert TOKENS.authenticate(header(OPERATOR)) == Principal(
        tenant_id=TENANT, role=Role.OPERATOR, name="operator", agent_id=None
    )


def test_roots_token_proves_root_where_there_is_one() -> None:
    tokens = Tokens(b"m" * 32, OPERATOR, TENANT, root_token="r" * 32)
    assert tokens.authenticate(header("r" * 32)) == Principal(TENANT, Role.ROOT, "root")
    assert tokens.authenticate(header(OPERATOR)).role is Role.OPERATOR
    with pytest.raises(UnauthorizedError):
        TOKENS.authenticate(header("r" * 32))


def test_a_token_is_the_same_each_time_and_in_each_process() -> None:
    again = Tokens(b"m" * 32, OPERATOR, TENANT)
    assert again.issue(TENANT, "mailer") == TOKENS.issue(TENANT, "mailer")


def test_a_token_after_revocations_names_its_epoch_and_proves_it() -> None:
    later = TOKENS.issue(TENANT, "mailer", 12)
    assert later.split(".")[1:3] == ["mailer", "12"]
    assert TOKENS.authenticate(header(later)) == Principal(TENANT, Role.AGENT, "mailer", "mailer", epoch=12)
    first = TOKENS.issue(TENANT, "mailer")
    for forged in (
        later.replace(".12.", ".13."),
        later.replace(".12.", "."),
        later.replace(".12.", ".012."),
        first.replace("mailer.", "mailer.0."),
        first.replace("mailer.", "mailer.1."),
    ):
        with pytest.raises(UnauthorizedError):
            TOKENS.authenticate(header(forged))


def test_tokens_differ_by_agent_tenant_and_master_key() -> None:
    other_key = Tokens(b"n" * 32, OPERATOR, TENANT)
    issued = [
        TOKENS.issue(TENANT, "mailer"),
        TOKENS.issue(TENANT, "mailer2"),
        TOKENS.issue(OTHER, "mailer"),
        other_key.issue(TENANT, "mailer"),
    ]
    assert len({token.rpartition(".")[2] for token in issued}) == len(issued)
    with pytest.raises(UnauthorizedError):
        TOKENS.authenticate(header(issued[3]))


@pytest.mark.parametrize("cut", [1, 2, 64, 65, 66, 75])
def test_a_truncated_token_proves_nothing(cut: int) -> None:
    with pytest.raises(UnauthorizedError):
        TOKENS.authenticate(header(TOKENS.issue(TENANT, "mailer")[:-cut]))


def test_a_token_carried_over_to_another_agent_or_tenant_proves_nothing() -> None:
    token = TOKENS.issue(TENANT, "mailer")
    for forged in (token.replace("mailer", "admin"), token.replace(TENANT.hex, OTHER.hex)):
        assert forged != token
        with pytest.raises(UnauthorizedError):
            TOKENS.authenticate(header(forged))


@given(st.integers(0, 63), st.sampled_from("0123456789abcdef"))
def test_no_changed_digit_of_the_mac_is_accepted(place: int, digit: str) -> None:
    start, _, mac = TOKENS.issue(TENANT, "mailer").rpartition(".")
    changed = mac[:place] + digit + mac[place + 1 :]
    if changed != mac:
        with pytest.raises(UnauthorizedError):
            TOKENS.authenticate(header(f"{start}.{changed}"))


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer caf\xe9",
        "Bearer café".encode(),
        b"Bearer " + b"a" * 10_000,
        b"Basic " + OPERATOR.encode(),
        OPERATOR.encode(),
        b"Bearer  " + OPERATOR.encode(),
        b"Bearer " + OPERATOR.encode() + b" ",
        b"Bearer " + OPERATOR.encode() + b"\n",
        b" Bearer " + OPERATOR.encode(),
        b"Bearer " + OPERATOR.encode()[:-1],
        b"Bearer " + OPERATOR.encode().upper(),
        b"Bearer\t" + OPERATOR.encode(),
    ],
)
def test_h18_anything_else_is_refused_in_the_same_words(value: bytes | None) -> None:
    said = r"^missing or invalid bearer token; send Authorization: Bearer <token>$"
    with pytest.raises(UnauthorizedError, match=said):
        TOKENS.authenticate(value)


@given(st.binary(max_size=600))
def test_h18_no_bytes_raise_anything_else(value: bytes) -> None:
    with pytest.raises(UnauthorizedError):
        TOKENS.authenticate(value)


def test_h18_secrets_are_compared_in_constant_time() -> None:
    tree = ast.parse(inspect.getsource(app.tokens))
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    # Presence and length of what was sent may be compared plainly, secrets may not.
    assert not [node for node in compared if any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops)]
    digests = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "compare_digest"]
    assert len(digests) == 3
