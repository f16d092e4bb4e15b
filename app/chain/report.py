"""What verifying a chain found: where the first faults are, of which class, and the verdict."""

from __future__ import annotations

import msgspec

from app.chain.keys import PublicKey
from app.chain.record import Head
from app.chain.strict import JsonValue
from app.chain.verdict import Verdict

MAX_FAULTS = 100
"""Runs of faults that a report spells out; beyond it they are only counted, so that memory is bounded."""


class Fault(msgspec.Struct, frozen=True):
    """A run of records, one after the other, that fail for the same class of reason.

    ``seq`` is the first bad position in the chain (None when the record does not even say one), ``line``
    the first bad line (from 1), ``fault`` the class (see ``ChainError``),
    ``reason`` a sentence on the first of them, ``records`` how many there are.
    """

    seq: int | None
    line: int
    fault: str
    reason: str
    records: int = 1


class PutInForce(msgspec.Struct, frozen=True):
    """A pinned key that a chain did not begin with, and that a record at ``seq`` handed it over to.

    ``signed_by`` signed that record, which proves little: whoever makes a chain may name any key in it.
    ``records`` counts those behind it that ``key`` signed: its owner vouches for all that they follow.
    """

    key: PublicKey
    seq: int
    signed_by: PublicKey
    records: int = 0


class OtherKey(msgspec.Struct, frozen=True):
    """A chain begins with a key that is not among the pinned ones. No sign of a change: keys are rotated."""

    begins_with: PublicKey
    pinned: tuple[PublicKey, ...]
    put_in_force: PutInForce | None

    @property
    def told(self) -> str:
        """What a person needs to know to pin the right key, or to see that there is none."""
        which = self.pinned[0].hex if len(self.pinned) == 1 else "one of the pinned keys"
        sentence = f"the chain begins with key {self.begins_with.hex}, which is not {which}"
        later = self.put_in_force
        if later is None:
            return sentence
        return (
            f"{sentence}; {later.key.hex} was put in force at seq {later.seq} by a record that "
            f"{later.signed_by.hex} signed, and signed {later.records} records behind it"
        )

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON."""
        later = self.put_in_force
        return {
            "begins_with": self.begins_with.hex,
            "pinned": [key.hex for key in self.pinned],
            "put_in_force": None
            if later is None
            else {
                "public_key": later.key.hex,
                "seq": later.seq,
                "signed_by": later.signed_by.hex,
                "records": later.records,
            },
        }


class Report(msgspec.Struct, frozen=True):
    """The outcome of verifying one chain.

    ``checked`` counts the records that were looked at, ``faulty`` those refused, ``fault_count`` the runs of
    them, of which ``first_faults`` are spelt out. ``head`` is the last verified record's. ``cut`` says that
    the input ends in the middle of a record. ``missing_checkpoints`` are seqs that a checkpoint names and
    that were not found sound; ``anchored_to`` is the highest seq that a checkpoint confirmed: up to there
    the chain is proven complete, beyond it nothing in the chain itself can tell. ``other_key`` is there when
    keys were pinned and the chain begins with none of them.
    """

    checked: int
    faulty: int
    fault_count: int
    first_faults: tuple[Fault, ...]
    head: Head | None
    genesis_key: PublicKey | None
    key: PublicKey | None
    genesis: dict[str, JsonValue] | None
    signer_trusted: bool
    unknown_kinds: int
    missing_checkpoints: tuple[int, ...]
    anchored_to: int | None
    cut: bool
    other_key: OtherKey | None = None

    @property
    def verdict(self) -> Verdict:
        """The gravest thing that is true of the chain."""
        if self.fault_count:
            return Verdict.TAMPERED
        if self.cut or self.missing_checkpoints:
            return Verdict.INCOMPLETE
        if not self.checked:
            return Verdict.NOTHING
        if self.other_key is not None:
            return Verdict.OTHER_KEY
        return Verdict.VERIFIED if self.signer_trusted else Verdict.SELF_DECLARED

    def to_json(self) -> dict[str, JsonValue]:
        """The report as JSON: verdict and exit code first, then what they rest on."""
        other = {} if self.other_key is None else {"other_key": self.other_key.to_json()}
        return {
            "verdict": self.verdict.value,
            "exit_code": self.verdict.exit_code,
            "checked": self.checked,
            "faulty": self.faulty,
            "fault_count": self.fault_count,
            "faults": [_fault_json(fault) for fault in self.first_faults],
            "head": None if self.head is None else {"seq": self.head.seq, "hash": self.head.hash},
            "genesis_key": None if self.genesis_key is None else self.genesis_key.hex,
            "public_key": None if self.key is None else self.key.hex,
            "genesis": self.genesis,
            "signer_trusted": self.signer_trusted,
            "unknown_kinds": self.unknown_kinds,
            "missing_checkpoints": list(self.missing_checkpoints),
            "anchored_to": self.anchored_to,
            "cut": self.cut,
            **other,
        }


def _fault_json(fault: Fault) -> dict[str, JsonValue]:
    return {
        "seq": fault.seq,
        "line": fault.line,
        "fault": fault.fault,
        "reason": fault.reason,
        "records": fault.records,
    }
