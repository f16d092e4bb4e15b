"""What the signed statement at the end of a file proves of the chains in it: that none of them lost its tail.

It proves that as far as its signer is trusted, and of those chains alone that are the signer's own. With
pinned keys it has to be signed by one of them, or by a key that a chain which begins with one hands over to:
a chain that somebody put into the file names any key that he likes. Without a pinned key nothing is trusted:
a statement is worth as much as the chain whose key signed it, since whoever holds that key could make both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from app.chain.keys import PublicKey
from app.chain.report import Report
from app.verification.outcome import Outcome

_NOT_VOUCHED: Final = (
    "{what} is signed by key {key}, which is not pinned, and no chain that begins with a pinned key hands "
    "over to it"
)
_UNKNOWN: Final = "{what} is signed by key {key}, which is neither pinned nor a chain's in it"
_OF_ANOTHER: Final = (
    "{what} is signed by key {key}, which is none of this chain's: nothing tells that its tail was not cut"
)


class ChainKeys(msgspec.Struct, frozen=True):
    """The keys (hex) that a chain begins and ends with, and those of them that a pinned key vouches for."""

    known: frozenset[str] = frozenset()
    vouched: frozenset[str] = frozenset()


class End(msgspec.Struct, frozen=True):
    """The statement at the end of a file.

    Attributes:
        what: how it is called, such as ``its last line``.
        file: how the file is called, such as ``bundle``.
        taken_at: the moment of the export, as it says.
        signed_by: whose key signed it; None: nobody's.
    """

    what: str
    file: str
    taken_at: object
    signed_by: PublicKey | None


def untrusted(
    end: End, keys: Iterable[ChainKeys], pinned: Mapping[str, PublicKey], named: Iterable[PublicKey] = ()
) -> str | None:
    """Why the statement's signer is nobody's who could tell; None if it is, or if nobody signed.

    Args:
        end: the statement.
        keys: of all chains of the file, also of those that are not asked about.
        pinned: trusted keys by their hex.
        named: keys that the file names beside its chains, which count when none is pinned.
    """
    if end.signed_by is None or end.signed_by.hex in pinned:
        return None
    key = end.signed_by.hex
    if pinned:
        is_vouched = any(key in of_chain.vouched for of_chain in keys)
        return None if is_vouched else _NOT_VOUCHED.format(what=end.what, key=key)
    is_known = any(key in of_chain.known for of_chain in keys) or end.signed_by in set(named)
    return None if is_known else _UNKNOWN.format(what=end.what, key=key)


def sealed(end: End, outcomes: Sequence[Outcome], pinned: Mapping[str, PublicKey]) -> list[Outcome]:
    """The outcomes with what the statement, whose signer is not ``untrusted``, proves of each."""
    key = end.signed_by
    if key is None:
        return list(outcomes)
    taken = f"the signed {end.file} of {end.taken_at}"
    if pinned:
        return [msgspec.structs.replace(outcome, sealed=taken) for outcome in outcomes]
    own = f"{taken}, by the word of key {key.hex} alone, which is the chain's own and not pinned"
    other = _OF_ANOTHER.format(what=end.what, key=key.hex)
    return [
        msgspec.structs.replace(outcome, sealed=own)
        if key.hex in keys_of(outcome.report)
        else msgspec.structs.replace(outcome, note=outcome.note or other)
        for outcome in outcomes
    ]


def keys_of(report: Report | None) -> frozenset[str]:
    """The keys (hex) that a chain begins and ends with."""
    keys = () if report is None else (report.genesis_key, report.key)
    return frozenset(key.hex for key in keys if key is not None)
