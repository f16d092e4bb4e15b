"""A bundle: one ZIP file with everything that it takes to verify chains without the service.

In this order: ``README.txt``, ``records/AGENT.CHAIN.jsonl`` of each chain (the export lines alone),
``heads.txt`` (a file of heads), ``keys.json`` (the tenant's public keys, oldest first) and, last, the signed
``manifest.json``, which names every member with its length and SHA-256, and of chains their count and head.
The same snapshot gives the same bytes but for the time of it. It is written as a stream: of each chain only
its line of the manifest is kept.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from app.chain.canonical import canonical
from app.heads import TITLE
from app.ledger.export.sink import Sink
from app.ledger.export.told import ChainEnd, Sums, Told
from app.ledger.export.writers import Columns, Writer, line_of

if TYPE_CHECKING:
    from app.chain.strict import JsonObject, JsonValue
    from db.exports import Chain, Record

MANIFEST: Final = "manifest.json"
HEADS: Final = "heads.txt"
KEYS: Final = "keys.json"
README: Final = "README.txt"
RECORDS: Final = "records/"

_README: Final = """\
A bundle of Lineage Trails: signed, hash-chained records of AI agents, and what it takes to verify them.

  records/AGENT.CHAIN.jsonl   one record a line, exactly as it was signed, from the first to the last
  heads.txt                   the last record of each chain: SEQ:HASH CHAIN AGENT; keep a copy elsewhere
  keys.json                   the tenant's public keys, oldest first; pin a key that you have from elsewhere
  manifest.json               every member's length and SHA-256, the chains' counts and heads; signed

With the program, offline, on the bundle as it is:

  trails verify BUNDLE --public-key HEX

Without it: unpack, and see that each member has the SHA-256 that manifest.json says. manifest.json is one
line, signed like a record: take the tail ,"hash":"...","signature":"..." off (64 and 128 hex digits; then put
the last brace back); the hash is SHA-256 over "lineage-export-v1", a line feed and those bytes, the signature
Ed25519 over the 32 bytes of the hash, by the key that it names: see that you trust that one, or that a chain
which begins with a key that you trust hands over to it. Lines of records/ are signed in the same way, with
"lineage-audit-v1" as the first line of what is hashed; prev_hash of each is the hash of the one before, of
the first 64 zeros; the first record names the first key, and a record of kind key_rotated the next one.
"""


class Bundle(Writer):
    """Chains as a bundle."""

    about = "manifest"

    def __init__(self, told: Told, columns: Columns) -> None:
        super().__init__(told, columns)
        self._sink = Sink()
        self._zip = zipfile.ZipFile(self._sink, "w", zipfile.ZIP_DEFLATED, compresslevel=6)
        self._member: _Member | None = None
        self._members: list[JsonValue] = []
        self._heads: list[str] = []

    def begin(self) -> bytes:
        """The README."""
        self._add(README, _README.encode())
        return self._sink.taken()

    def begin_chain(self, chain: Chain) -> bytes:
        """Opens the chain's member."""
        name = f"{RECORDS}{chain.agent_id}.{chain.log_uuid}.jsonl"
        self._member = _Member(self._zip, self._info(name))
        return self._sink.taken()

    def records(self, records: Sequence[Record]) -> bytes:
        """Export lines into the chain's member."""
        if self._member is not None:
            self._member.write(b"".join(map(line_of, records)))
        return self._sink.taken()

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """A bundle holds chains alone."""
        raise NotImplementedError

    def end_chain(self, end: ChainEnd) -> bytes:
        """Closes the chain's member."""
        if self._member is not None:
            self._members.append({**self._member.close(), **end.to_json()})
            self._member = None
        self._heads.append(end.line)
        return self._sink.taken()

    def close(self) -> bytes:
        """Heads and keys."""
        self._add(HEADS, "".join([f"{TITLE}\n", *self._heads]).encode())
        self._add(KEYS, canonical({"keys": self.told.keys_json()}).encode() + b"\n")
        return self._sink.taken()

    def says(self, sums: Sums) -> JsonObject:
        """What the manifest says."""
        counts: JsonObject = {"rows": sums.rows, "chains": sums.chains}
        return {**self.told.to_json(), **counts, "members": self._members, "complete": True}

    def end(self, statement: str) -> bytes:
        """The manifest, and the ZIP's own directory."""
        self._add(MANIFEST, statement.encode() + b"\n")
        self._zip.close()
        return self._sink.taken()

    def _add(self, name: str, content: bytes) -> None:
        member = _Member(self._zip, self._info(name))
        member.write(content)
        told = member.close()
        if name != MANIFEST:
            self._members.append(told)

    def _info(self, name: str) -> zipfile.ZipInfo:
        at = self.told.taken_at
        # A ZIP's times begin in 1980 and have no zone; the manifest has the exact one.
        info = zipfile.ZipInfo(name, (max(at.year, 1980), at.month, at.day, at.hour, at.minute, 0))
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o644 << 16
        info.create_system = 3
        return info


class _Member:
    """One member while it is written: what went into it is counted and hashed."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._name = info.filename
        self._file = archive.open(info, "w", force_zip64=True)
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> None:
        """Adds to it."""
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def close(self) -> JsonObject:
        """Ends it; its entry of the manifest."""
        self._file.close()
        return {"name": self._name, "bytes": self._size, "sha256": self._digest.hexdigest()}
