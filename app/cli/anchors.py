"""Heads kept elsewhere: what alone can tell that the tail of a chain was cut.

``--checkpoint SEQ:HASH`` is the head of the one chain that is verified. A file for ``--heads`` has one head
a line, ``SEQ:HASH [CHAIN]``; CHAIN is a chain's log_uuid, ``tenant/agent`` or ``agent``, and what follows it
is a comment, as are lines that begin with ``#``. ``trails verify --save-heads FILE`` writes such a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
import msgspec

_HEAD: Final = re.compile(r"(?P<seq>0|[1-9][0-9]{0,18}):(?P<hash>[0-9a-f]{64})")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Anchor(msgspec.Struct, frozen=True):
    """One head that was kept: of the chain with this name, or (no name) of the only chain."""

    seq: int
    hash: str
    log_uuid: str | None = None
    tenant: str | None = None
    agent_id: str | None = None

    @property
    def named(self) -> bool:
        """Whether it says which chain it belongs to."""
        return self.log_uuid is not None or self.agent_id is not None

    def belongs_to(self, *, tenant: str | None, agent_id: str | None, log_uuid: str | None) -> bool:
        """Whether it is a head of this chain; a file does not say its tenant's slug (None)."""
        if self.log_uuid is not None:
            return self.log_uuid == log_uuid
        if self.tenant is not None and tenant is not None and self.tenant != tenant:
            return False
        return self.agent_id is None or self.agent_id == agent_id


def parse_checkpoint(text: str) -> Anchor:
    """Reads ``SEQ:HASH``.

    Raises:
        click.BadParameter: another form.
    """
    match = _HEAD.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not SEQ:HASH, such as 41:9f2c… with 64 lowercase hex digits after the colon"
        )
    return Anchor(int(match["seq"]), match["hash"])


def read_heads(path: Path) -> list[Anchor]:
    """Reads a file of heads.

    Raises:
        click.BadParameter: a line of another form, named by its number.
        OSError: the file cannot be read.
        UnicodeDecodeError: it is no text.
    """
    anchors = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            anchors.append(_named(parse_checkpoint(words[0]), words[1] if len(words) > 1 else None))
        except click.BadParameter as error:
            raise click.BadParameter(f"{path} line {number}: {error.message}") from None
    return anchors


def checkpoints(anchors: Iterable[Anchor]) -> dict[int, str]:
    """Hashes by seq.

    Raises:
        click.BadParameter: two heads of one chain contradict each other.
    """
    found: dict[int, str] = {}
    for anchor in anchors:
        if found.setdefault(anchor.seq, anchor.hash) != anchor.hash:
            raise click.BadParameter(f"two checkpoints give seq {anchor.seq} different hashes")
    return found


def _named(anchor: Anchor, name: str | None) -> Anchor:
    if name is None:
        return anchor
    if _UUID.fullmatch(name):
        return msgspec.structs.replace(anchor, log_uuid=name)
    tenant, slash, agent_id = name.rpartition("/")
    return msgspec.structs.replace(anchor, tenant=tenant if slash else None, agent_id=agent_id)
