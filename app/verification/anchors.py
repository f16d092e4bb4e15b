"""Heads kept elsewhere: what alone can tell that the tail of a chain was cut.

``--checkpoint SEQ:HASH`` is the head of the one chain that is verified. A file for ``--heads`` has one head
a line, ``SEQ:HASH [CHAIN]``; CHAIN is a chain's log_uuid, ``tenant/agent`` or ``agent``, and what follows it
is a comment, as are lines that begin with ``#``. ``trails verify --save-heads FILE`` writes such a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from app.heads import HEAD, LOG_UUID

_MAX_TROUBLES: Final = 3
"""Lines of a heads file that are named when they cannot be read."""


class Anchor(msgspec.Struct, frozen=True):
    """One head that was kept: of the chain with this name, or (no name) of the only chain."""

    seq: int
    hash: str
    log_uuid: str | None = None
    tenant: str | None = None
    agent_id: str | None = None
    told: str = ""
    """What stands behind the name, for people: a comment, which decides nothing."""

    @property
    def named(self) -> bool:
        """Whether it says which chain it belongs to."""
        return self.log_uuid is not None or self.agent_id is not None

    def belongs_to(self, *, tenant: str | None, agent_id: str | None, log_uuid: str | None) -> bool:
        """Whether it is a head of this chain; a file does not say its tenant's slug (None)."""
        if self.log_uuid is not None:
            return log_uuid is not None and self.log_uuid.lower() == log_uuid.lower()
        if self.tenant is not None and tenant is not None and self.tenant != tenant:
            return False
        return self.agent_id is None or self.agent_id == agent_id


def parse_checkpoint(text: str) -> Anchor:
    """Reads ``SEQ:HASH``.

    Raises:
        ValueError: another form.
    """
    match = HEAD.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not SEQ:HASH, such as 41:9f2c… with 64 lowercase hex digits after the colon"
        )
    return Anchor(int(match["seq"]), match["hash"])


class Heads(msgspec.Struct, frozen=True):
    """What a file of heads says; ``troubles`` are its lines, or all of it, that could not be read."""

    anchors: tuple[Anchor, ...] = ()
    troubles: tuple[str, ...] = ()


def read_heads(path: Path) -> Heads:
    """Reads a file of heads. What cannot be read of it is said, and what can be read counts all the same."""
    try:
        lines = path.read_bytes().decode("utf-8-sig", "replace").splitlines()
    except (OSError, ValueError) as error:
        return Heads(troubles=(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",))
    anchors, troubles = [], []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            anchor = _named(parse_checkpoint(words[0]), words[1] if len(words) > 1 else None)
            anchors.append(msgspec.structs.replace(anchor, told=" ".join(words[2:])))
        except ValueError as error:
            troubles.append(f"{path} line {number}: {error}")
    more = len(troubles) - _MAX_TROUBLES
    if more > 0:
        troubles[_MAX_TROUBLES:] = [f"{path}: {more} more lines cannot be read"]
    return Heads(tuple(anchors), tuple(troubles))


def checkpoints(anchors: Iterable[Anchor]) -> dict[int, str]:
    """Hashes by seq of one chain's heads; of two that contradict each other the first."""
    found: dict[int, str] = {}
    for anchor in anchors:
        found.setdefault(anchor.seq, anchor.hash)
    return found


def contradiction(anchors: Iterable[Anchor]) -> str:
    """What is wrong with several heads of one chain by themselves; empty when they agree.

    No chain can hold two hashes at one seq: whichever it holds, a head kept elsewhere says otherwise.
    """
    found: dict[int, str] = {}
    for anchor in anchors:
        if found.setdefault(anchor.seq, anchor.hash) != anchor.hash:
            return f"two heads kept elsewhere give seq {anchor.seq} different hashes; one is not this chain's"
    return ""


def _named(anchor: Anchor, name: str | None) -> Anchor:
    if name is None:
        return anchor
    if LOG_UUID.fullmatch(name.lower()):
        return msgspec.structs.replace(anchor, log_uuid=name.lower())
    tenant, slash, agent_id = name.rpartition("/")
    return msgspec.structs.replace(anchor, tenant=tenant if slash else None, agent_id=agent_id)
