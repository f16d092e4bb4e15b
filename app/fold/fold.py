"""Fold: what the verified records of one chain come to, and how a snapshot record says it.

Whoever reads a chain from its first record compares each snapshot with the fold of all before it, and refuses
a chain where they differ. So whoever begins at a snapshot knows what a reader of the whole chain knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from app.chain.keys import PublicKey
from app.chain.record import KEY_ROTATED, SNAPSHOT, Draft
from app.errors import FoldError, FormatError, KeyMaterialError
from app.fold.administration import NO_STANDING, TenantStanding, stand
from app.guard.fields import FieldError, as_object, text
from app.guard.snapshot import state_from_json, state_to_json
from app.guard.state import EMPTY, GuardState, evolve
from app.principal import ADMINISTRATION
from app.redaction.rules import DEFAULT_RULES, RuleList

if TYPE_CHECKING:
    from app.chain.record import VerifiedRecord
    from app.chain.strict import JsonObject, JsonValue

GUARD: Final = "guard"
"""Actor of snapshots, as of the terminations that the guard decides on."""

_FORM: Final = 1
"""Form of what a snapshot says; one of another form is neither believed nor compared."""


class ChainId(msgspec.Struct, frozen=True):
    """The registry's row of a chain."""

    tenant_id: UUID
    agent_id: str
    log_uuid: UUID
    guarded: bool


class Fold:
    """What was folded of a chain so far; it changes through ``advance`` and ``begin_at``.

    ``state`` is the guard's, ``standing`` what an administration chain says of its tenant (an agent's chain
    says nothing of it), ``genesis_key`` the chain's first key, ``key`` the one in force. ``snapshot_seq`` is
    where the last snapshot stands that is signed by it (-1: nowhere), ``snapshot_size`` its characters.
    """

    __slots__ = ("genesis_key", "id", "key", "snapshot_seq", "snapshot_size", "standing", "state")

    def __init__(self, chain_id: ChainId) -> None:
        self.id = chain_id
        self.forget()

    def forget(self) -> None:
        """Nothing is folded any more."""
        self.state: GuardState = EMPTY
        self.standing: TenantStanding = NO_STANDING
        self.key: PublicKey | None = None
        self.genesis_key: PublicKey | None = None
        self.snapshot_seq = -1
        self.snapshot_size = 0

    def advance(self, record: VerifiedRecord, verifier_key: PublicKey) -> None:
        """Folds the next verified record; ``verifier_key`` is the key in force after it.

        Raises:
            ChainError: it contradicts what came before it; nothing is changed.
        """
        standing = stand(self.standing, record) if self.id.agent_id == ADMINISTRATION else NO_STANDING
        state = evolve(self.state, record)
        if record.kind == SNAPSHOT and record.payload.get("form") == _FORM:
            self._check(record)
            self.snapshot_seq, self.snapshot_size = record.seq, len(record.text)
        elif record.kind == KEY_ROTATED:
            self.snapshot_seq = -1  # nobody begins at what a retired key signed
        self.state, self.standing, self.key = state, standing, verifier_key
        if self.genesis_key is None:
            self.genesis_key = verifier_key

    def begin_at(self, record: VerifiedRecord, key: PublicKey) -> None:
        """Begins at a verified snapshot that ``key`` signed, instead of at the first record.

        Raises:
            FormatError: it is none of this chain, or of another form.
        """
        try:
            genesis_key, state, standing = self._said(record)
        except FieldError as error:
            raise FormatError(f"snapshot: {error}", seq=record.seq) from error
        self.genesis_key, self.state, self.standing, self.key = genesis_key, state, standing, key
        self.snapshot_seq, self.snapshot_size = record.seq, len(record.text)

    def snapshot(self) -> Draft:
        """The snapshot that can be appended now, between two acts.

        Raises:
            KeyMaterialError: nothing was folded yet.
        """
        if self.genesis_key is None:
            raise KeyMaterialError("nothing was read of the chain, so there is nothing to take a snapshot of")
        payload: JsonObject = {
            "form": _FORM,
            "agent_id": self.id.agent_id,
            "log_uuid": str(self.id.log_uuid),
            "genesis_key": self.genesis_key.hex,
            "state": state_to_json(self.state),
        }
        if self.id.agent_id == ADMINISTRATION:
            payload["standing"] = _standing_to_json(self.standing)
        return Draft(SNAPSHOT, payload, GUARD)

    def postpone_snapshot(self, size: int) -> None:
        """No snapshot is taken here, since it would have ``size`` characters."""
        self.snapshot_seq = -1 if self.state.head is None else self.state.head.seq
        self.snapshot_size = size

    def _check(self, record: VerifiedRecord) -> None:
        """Compares a snapshot with what was folded of the records before it."""
        try:
            genesis_key, state, standing = self._said(record)
        except FieldError as error:
            raise FormatError(f"snapshot: {error}", seq=record.seq) from error
        folded = msgspec.structs.replace(self.state, head=record.head)
        if (genesis_key, state, standing) != (self.genesis_key, folded, self.standing):
            raise FoldError("the snapshot is not the fold of the records before it", seq=record.seq)

    def _said(self, record: VerifiedRecord) -> tuple[PublicKey, GuardState, TenantStanding]:
        payload = record.payload
        named = (payload.get("form"), payload.get("agent_id"), payload.get("log_uuid"))
        if named != (_FORM, self.id.agent_id, str(self.id.log_uuid)):
            raise FieldError("log_uuid", "it is a snapshot of another chain, or of another form")
        try:
            genesis_key = self._key_called(text(payload, "genesis_key"))
        except KeyMaterialError as error:
            raise FieldError("genesis_key", str(error)) from error
        standing = NO_STANDING
        if self.id.agent_id == ADMINISTRATION:
            standing = _standing_from_json(payload.get("standing"))
        return genesis_key, state_from_json(payload.get("state"), record.head), standing

    def _key_called(self, name: str) -> PublicKey:
        """The key of this hex; loading one takes longer than all else that is said."""
        known = self.genesis_key
        return known if known is not None and known.hex == name else PublicKey.load(name)


class _Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tenant's standing as it is written; no ``redaction`` is that of the beginning."""

    keys: dict[str, int | None]
    names: dict[str, str]
    epochs: dict[str, int]
    suspended: bool
    redaction: dict[str, Any] | None
    webhooks: dict[str, bool] = {}


def _standing_to_json(standing: TenantStanding) -> JsonObject:
    rules = standing.redaction
    written: JsonObject = msgspec.to_builtins(
        _Standing(
            keys=standing.keys,
            names=standing.names,
            epochs=standing.epochs,
            suspended=standing.suspended,
            redaction=None if rules == DEFAULT_RULES else rules.to_json(),
            webhooks=standing.webhooks,
        )
    )
    return written


def _standing_from_json(value: JsonValue) -> TenantStanding:
    try:
        written = msgspec.convert(as_object(value, "standing"), _Standing)
    except msgspec.ValidationError as error:
        raise FieldError("standing", str(error)) from error
    rules = DEFAULT_RULES if written.redaction is None else RuleList.recorded(written.redaction)
    return TenantStanding(
        written.keys, written.names, written.epochs, written.suspended, rules, written.webhooks
    )
