"""How a signing key is stored: what its seal binds, and that neither form opens as the other (case C24)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from app.chain.keys import SigningKey, seal_secret
from app.errors import KeyMaterialError
from app.ledger.keys.sealed_key import NewSigningKey, in_order, is_dated, key_context, open_row, seal_key
from db.ledger import SigningKeyRow

MASTER = bytes(range(32))
TENANT = UUID(int=7)
SECRET = bytes(range(1, 33))
KEY = NewSigningKey(SigningKey.from_raw(SECRET).public, SECRET)
AT = datetime(2026, 5, 4, 3, 2, 1, 987_654, tzinfo=UTC)


def undated(secret: bytes = SECRET, at: datetime = AT) -> SigningKeyRow:
    """A row as it was before the time was sealed."""
    public = SigningKey.from_raw(secret).public
    context = key_context(TENANT, public.key_id)
    sealed = seal_secret(MASTER, secret, context=context, nonce=bytes(12))
    return SigningKeyRow(TENANT, public.key_id, public.hex, sealed, at)


@pytest.mark.parametrize("content", [SECRET, "file:/run/keys/acme.pem", "k:" + "x" * 2_000])
def test_what_was_sealed_opens(content: bytes | str) -> None:
    row = seal_key(MASTER, TENANT, msgspec.structs.replace(KEY, content=content), AT)
    stored = open_row(MASTER, row)
    assert (stored.public, stored.content) == (KEY.public, content)
    assert is_dated(row)


def test_a_key_of_the_old_form_opens_without_a_time() -> None:
    stored = open_row(MASTER, undated())
    assert (stored.public, stored.content, stored.created_us) == (KEY.public, SECRET, None)
    assert not is_dated(undated())


@pytest.mark.parametrize(
    "changed",
    [
        {"created_at": AT + timedelta(microseconds=1)},
        {"created_at": AT - timedelta(days=300)},
        {"tenant_id": UUID(int=8)},
        {"key_id": "0" * 16},
        {"public_key": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"},
    ],
)
@pytest.mark.parametrize("content", [SECRET, "file:/run/keys/acme.pem"])
def test_no_column_of_a_key_can_be_changed(content: bytes | str, changed: dict[str, object]) -> None:
    row = seal_key(MASTER, TENANT, msgspec.structs.replace(KEY, content=content), AT)
    with pytest.raises(KeyMaterialError):
        open_row(MASTER, msgspec.structs.replace(row, **changed))


def test_every_changed_byte_of_the_seal_is_found() -> None:
    row = seal_key(MASTER, TENANT, KEY, AT)
    for place in range(len(row.sealed_secret)):
        altered = bytearray(row.sealed_secret)
        altered[place] ^= 1
        with pytest.raises(KeyMaterialError):
            open_row(MASTER, msgspec.structs.replace(row, sealed_secret=bytes(altered)))


def test_neither_form_opens_as_the_other() -> None:
    old, new = undated(), seal_key(MASTER, TENANT, KEY, AT)
    shapes = [
        b"\x02" + old.sealed_secret,
        new.sealed_secret[1:],
        new.sealed_secret[1:61],
        new.sealed_secret[:60],
        b"",
        b"\x02",
    ]
    for sealed in shapes:
        with pytest.raises(KeyMaterialError):
            open_row(MASTER, msgspec.structs.replace(old, sealed_secret=sealed))


def test_another_master_key_opens_nothing() -> None:
    with pytest.raises(KeyMaterialError):
        open_row(bytes(32), seal_key(MASTER, TENANT, KEY, AT))


def test_keys_of_the_old_form_come_first_whatever_their_time() -> None:
    keys = [NewSigningKey.random() for _ in range(2)]
    dated = [seal_key(MASTER, TENANT, key, AT + timedelta(hours=n)) for n, key in enumerate(keys)]
    old = [undated(bytes([n]) * 32, AT + timedelta(days=1_000 - n)) for n in range(2)]
    assert in_order([dated[1], *old, dated[0]]) == [old[1], old[0], dated[0], dated[1]]


def test_neither_a_new_nor_a_stored_key_shows_its_secret() -> None:
    stored = open_row(MASTER, seal_key(MASTER, TENANT, KEY, AT))
    for shown in (repr(KEY), str(stored), f"{stored!r}"):
        assert KEY.public.key_id in shown
        assert SECRET.hex() not in shown
        assert repr(SECRET) not in shown
