"""The CHECK that compares columns with the signed text as text: the same spelling, and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import asyncpg
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from psycopg import connect

import db.ledger
from app.chain.canonical import canonical
from app.chain.link import seal
from app.chain.record import Draft, hash_text
from db.ledger import TrailRow
from db.pool import Pool
from tests.integration.db.test_lying_rows import refused
from tests.support.postgres import Database
from tests.support.rows import KEY, START_US, Maker

EVERY_CONTROL = "".join(map(chr, [*range(1, 32), *range(127, 160)]))
AWKWARD = f'"\\/\b\t\n\f\r{EVERY_CONTROL}\u2028\u2029\ufeff\uffff\U0001f600\U0010ffff\'"}},"kind":"x'

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1)


@pytest.fixture
def spelt(database: Database) -> Iterator[Callable[[list[str]], list[str]]]:
    """How the database writes strings as JSON."""
    with connect(database.admin_url) as connection:
        yield lambda written: [
            row[0]
            for row in connection.execute(
                "SELECT to_json(t)::text FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n) ORDER BY n",
                (written,),
            )
        ]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([AWKWARD, *EVERY_CONTROL])
@given(texts)
def test_the_database_spells_strings_canonically(
    spelt: Callable[[list[str]], list[str]], written: list[str]
) -> None:
    assert spelt(written) == [canonical(text) for text in written]


async def test_records_of_any_actor_and_kind_are_taken(pool: Pool, maker: Maker) -> None:
    names = [(AWKWARD, "k"), ("a", AWKWARD[:64]), (",", '","payload":{}'), ("", "\\"), ('{"actor":', "}")]
    rows = []
    for actor, kind in names:
        record = seal(Draft(kind, {"kind": AWKWARD}, actor), maker.head, START_US + 9_000_000, KEY)
        maker.head = record.head
        rows.append(maker.mirror(record))
    await db.ledger.append(pool, rows)
    stored = await db.ledger.records(pool, maker.tenant_id, maker.log_uuid)
    assert [(row.actor, row.kind) for row in stored[-len(names) :]] == names


HIDDEN = {
    "a second kind": ('"payload":{}', '"payload":{},"kind":"scar"'),
    "a second actor": ('"payload":{}', '"payload":{},"actor":"somebody"'),
    "a second actor, escaped": ('"payload":{}', '"payload":{},"\\u0061ctor":"somebody"'),
    "a member more": ('"payload":{}', '"payload":{},"more":1'),
    "a payload before": ('"payload":{}', '"payload":1,"payload":{}'),
}


@pytest.mark.parametrize("hidden", HIDDEN)
async def test_nothing_hides_beside_the_payload(admin: asyncpg.Connection, maker: Maker, hidden: str) -> None:
    row = maker.row(payload={})
    changed = row.signed_text.replace(*HIDDEN[hidden])
    assert changed != row.signed_text
    assert "json" in await refused(admin, with_text(row, changed))


SPELLINGS = {
    "white space before": ("{", " {"),
    "white space behind": ("}", "} "),
    "white space within": ('"kind":', '"kind": '),
    "another order": ('"actor":"bot","kind":"event"', '"kind":"event","actor":"bot"'),
    "a letter escaped": ('"bot"', '"\\u0062ot"'),
    "a member before": ('{"actor"', '{"a":1,"actor"'),
    "a member behind": ('Z"}', 'Z","z":1}'),
    "a seq as a double": ('"seq":3', '"seq":3.0'),
    "no time": (',"timestamp"', ',"time"'),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_text_in_another_form_is_refused(
    admin: asyncpg.Connection, maker: Maker, spelling: str
) -> None:
    row = maker.row()
    text = row.signed_text.replace('{"n":1}', "1")
    changed = text.replace(*SPELLINGS[spelling])
    assert changed != text
    assert await refused(admin, with_text(row, changed)) == "trail_mirror"


async def test_a_signature_of_other_characters_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    assert "hexadecimal" in await refused(admin, maker.row(signature="xy" * 64))
    assert await refused(admin, maker.row(signature=" " + "ab" * 63 + " ")) == "trail_signature_format"


def with_text(row: TrailRow, text: str) -> TrailRow:
    """``row`` with exactly this signed text, hashed and signed again."""
    digest = hash_text(text)
    signature = KEY.sign(bytes.fromhex(digest)).hex()
    return msgspec.structs.replace(row, signed_text=text, hash=digest, signature=signature)
