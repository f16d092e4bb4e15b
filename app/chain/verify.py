"""Verification: a record is proven against its predecessor and the key in force, or an error says why not.

``Verifier`` takes one record after the other in constant memory. It returns a ``VerifiedRecord`` or raises;
there is no bare False. ``app.chain.audit`` drives it over a whole chain and goes on after a fault.
"""

from __future__ import annotations

from app.chain.keys import PublicKey
from app.chain.reading import read_fields, readable
from app.chain.record import (
    KEY_ROTATED,
    ZERO_HASH,
    Fields,
    Head,
    SignedRecord,
    VerifiedRecord,
    _proven,
    hash_text,
)
from app.chain.strict import JsonValue
from app.errors import (
    ChainError,
    ContentError,
    ForkError,
    KeyMaterialError,
    LinkError,
    OrderError,
    SignatureError,
)


class Verifier:
    """Verifies a chain record by record.

    Args:
        trusted: the key that the chain must begin with. Without it the genesis record's own word is taken,
            and whoever re-signed a whole chain is not found out.
        must_begin: whether a chain that begins with another key than ``trusted`` is refused; if not, it is
            judged by the key that it names.

    ``head`` is the last verified position, ``key`` the key in force, ``genesis_key`` the chain's first key,
    ``genesis`` the payload of its first record.
    """

    __slots__ = (
        "_doubted",
        "_floor_us",
        "_link",
        "_loose",
        "_next",
        "genesis",
        "genesis_key",
        "head",
        "key",
        "must_begin",
        "trusted",
    )

    def __init__(self, trusted: PublicKey | None = None, *, must_begin: bool = True) -> None:
        self.trusted = trusted
        self.must_begin = must_begin
        self.head: Head | None = None
        self.key: PublicKey | None = None
        self.genesis_key: PublicKey | None = None
        self.genesis: dict[str, JsonValue] | None = None
        self._next = 0
        self._loose = 0  # refused lines since the head: each may stand for a record, or for nothing
        self._link: str | None = ZERO_HASH
        self._floor_us: int | None = None
        self._doubted: PublicKey | None = None

    @classmethod
    def resume(cls, head: Head | None, key: PublicKey) -> Verifier:
        """A verifier that goes on behind ``head``, verified before, with the key in force there.

        With no head it begins a chain that must begin with ``key``.
        """
        verifier = cls(trusted=key if head is None else None)
        if head is not None:
            verifier.go_on(head, key)
        return verifier

    def go_on(self, head: Head, key: PublicKey) -> None:
        """Moves behind ``head``, verified elsewhere, with the key in force there."""
        self.key = key
        self._advance(head)

    def step(self, signed: SignedRecord) -> VerifiedRecord:
        """Proves the next record; the state is unchanged when it fails.

        The checks stand in the order of the errors: what a record says is read before it is judged, and its
        place is judged before its content.

        Raises:
            FormatError: not a record of this format, or not in canonical form.
            OrderError: ``seq`` is beyond the next one, or the time goes back.
            ForkError: ``seq`` was there before.
            LinkError: ``prev_hash`` is not the predecessor's hash.
            ContentError: ``hash`` is not that of the text.
            SignatureError: not signed by the key in force, or by one that is not trusted or weak.
        """
        fields = read_fields(signed.text)
        self._check_place(fields)
        self._check_link(fields)
        _check_content(fields, signed)
        key = self._check_signature(fields, signed)
        following = _named_key(fields) if fields.kind == KEY_ROTATED else key
        if fields.seq == 0:
            self.genesis_key, self.genesis = key, fields.payload
        self.key = following
        self._doubted = None
        self._advance(Head(fields.seq, signed.hash, fields.timestamp_us))
        return _proven(fields, signed)

    def resync(self, signed: SignedRecord) -> None:
        """Goes on behind a record that ``step`` refused, so that later ones are not blamed for it.

        What such a record says counts only as far as it proves itself: one with a sound hash and signature
        is a place to go on from; any other may have stood for the next record or for nothing at all, so the
        next place and, behind a lost record, its link are left open.
        Records verified after it are proven against each other, not against the chain's beginning.
        """
        fields = readable(signed.text)
        if self._next == 0 and self.key is None:
            self._assume_genesis(fields)
        record = self._sound(signed)
        if record is not None and record.seq < self._next:
            if record.seq == self._next - 1:
                self._link = None  # either branch of the fork may be the one that goes on
            return
        if record is not None:
            in_place = record.seq == self._next
            self._advance(record.head)
            if in_place:
                self._link = None  # refused for its link: the next may follow it, or what stood here before
        else:
            self._loose += 1
        if fields is not None and fields.kind == KEY_ROTATED:
            self._assume_rotation(fields)

    def _check_place(self, fields: Fields) -> None:
        last = self._next + self._loose
        if fields.seq > last:
            raise OrderError(f"found seq {fields.seq} where {last} is next", seq=last)
        if fields.seq < self._next:
            raise ForkError("this seq was there before", seq=fields.seq)
        if self._floor_us is not None and fields.timestamp_us < self._floor_us:
            raise OrderError("the timestamp is before its predecessor's", seq=fields.seq)

    def _check_link(self, fields: Fields) -> None:
        known = self._link is not None and fields.seq == self._next
        if known and fields.prev_hash != self._link:
            raise LinkError("prev_hash is not the predecessor's hash", seq=fields.seq)

    def _check_signature(self, fields: Fields, signed: SignedRecord) -> PublicKey:
        """The key that signed the record: the key in force, or at seq 0 the one the record names."""
        key = _named_key(fields) if fields.seq == 0 else self.key
        if key is None:
            raise SignatureError("the key is unknown, for the genesis record does not verify", seq=fields.seq)
        if fields.seq == 0 and self.must_begin and self.trusted is not None and key != self.trusted:
            reason = f"the genesis record names key {key.key_id}, not the trusted {self.trusted.key_id}"
            raise SignatureError(reason, seq=0)
        try:
            _check_signed(fields, signed, key)
        except SignatureError:
            if self._doubted is None:
                raise
            _check_signed(fields, signed, self._doubted)
            return self._doubted
        return key

    def _advance(self, head: Head) -> None:
        self.head = head
        self._next = head.seq + 1
        self._loose = 0
        self._link = head.hash
        self._floor_us = head.timestamp_us

    def _sound(self, signed: SignedRecord) -> VerifiedRecord | None:
        try:
            return None if self.key is None else verify_detached(signed, self.key)
        except ChainError:
            return None

    def _assume_genesis(self, fields: Fields | None) -> None:
        """After a refused genesis record: judge the rest by the key it names, else by the trusted one."""
        self.key = self.trusted
        if fields is not None and fields.seq == 0:
            self.key = _loadable_key(fields) or self.trusted

    def _assume_rotation(self, fields: Fields) -> None:
        """After a refused rotation: the next record decides which of the two keys is in force."""
        named = _loadable_key(fields)
        if named is not None:
            self._doubted, self.key = self.key, named


def verify_detached(signed: SignedRecord, key: PublicKey) -> VerifiedRecord:
    """Proves one record by itself: its format, hash and signature, not its place in a chain.

    Raises:
        FormatError: not a record of this format.
        ContentError: ``hash`` is not that of the text.
        SignatureError: not signed by ``key``.
    """
    fields = read_fields(signed.text)
    _check_content(fields, signed)
    _check_signed(fields, signed, key)
    return _proven(fields, signed)


def _check_content(fields: Fields, signed: SignedRecord) -> None:
    if hash_text(signed.text) != signed.hash:
        raise ContentError("the hash is not that of the text", seq=fields.seq)


def _check_signed(fields: Fields, signed: SignedRecord, key: PublicKey) -> None:
    try:
        key.verify(signed.hash, signed.signature)
    except SignatureError as error:
        raise SignatureError(error.reason, seq=fields.seq) from None


def _named_key(fields: Fields) -> PublicKey:
    """The key that a genesis or rotation record names."""
    try:
        return PublicKey.load(str(fields.payload["public_key"]))
    except KeyMaterialError as error:
        raise SignatureError(f"the key that the record names: {error}", seq=fields.seq) from None


def _loadable_key(fields: Fields) -> PublicKey | None:
    try:
        return _named_key(fields)
    except SignatureError:
        return None
