"""Writes the stored chains, good and bad, and what every verifier must say of them.

Keys and times are fixed, so making them again changes nothing. The expectations are stated here by hand,
beside what was done to the chain; no verifier is asked.

Run it from the root of the project: ``python tests/vectors/make_vectors.py``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from app.chain.keys import SigningKey  # noqa: E402  the script runs without an installed project, too
from app.chain.link import seal, seal_all  # noqa: E402
from app.chain.record import (  # noqa: E402
    ZERO_HASH,
    Draft,
    SignedRecord,
    VerifiedRecord,
    export_line,
    format_timestamp,
    hash_text,
)
from app.chain.strict import JsonValue  # noqa: E402

START_US = 1_790_756_855_423_031
"""2026-09-30T08:27:35.423031Z."""

ED25519_ORDER = 2**252 + 27742317777372353535851937790883648493
SMALL_ORDER_KEY = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
"""A point of order 8: some constant signatures verify under it for one message in eight."""


def key(name: str) -> SigningKey:
    """A fixed key of this name."""
    return SigningKey.from_raw(hashlib.sha256(f"test key {name}".encode()).digest())


ONE, TWO, THREE, STRANGER = key("one"), key("two"), key("three"), key("stranger")


class Expected(msgspec.Struct, frozen=True):
    """What a verifier must say: exit code, and the runs of faults as (seq, class)."""

    exit_code: int
    checked: int
    faults: list[tuple[int | None, str]] = []


class Vector(msgspec.Struct, frozen=True):
    """One stored file, how a verifier is called on it, and the outcome."""

    name: str
    note: str
    content: bytes
    expected: Expected
    public_key: str | None = ONE.public.hex
    checkpoint: tuple[int, str] | None = None

    @property
    def path(self) -> str:
        folder = "good" if self.expected.exit_code in {0, 6} else "bad"
        return f"{folder}/{self.name}.jsonl"


def genesis(signer: SigningKey = ONE) -> Draft:
    """The first record of the vectors' chain."""
    payload: dict[str, JsonValue] = {
        "log_id": "agent-7",
        "log_uuid": "6f1c9b1e-52a4-4c1c-9a62-0d6f0b6f2a11",
        "public_key": signer.public.hex,
        "tenant": "default",
    }
    return Draft("genesis", payload, "trails")


def event(n: int) -> Draft:
    """A small record of no special meaning."""
    return Draft("event", {"type": "step", "data": {"n": n, "text": f"step {n}"}}, "agent-7")


def rotation(to: str) -> Draft:
    """Names the next key."""
    return Draft("key_rotated", {"public_key": to}, "operator")


def chain(length: int = 10, signer: SigningKey = ONE) -> list[VerifiedRecord]:
    """A clean chain of events behind its genesis record, one second apart."""
    return extend([], [genesis(signer), *(event(n) for n in range(1, length))], signer)


def extend(records: list[VerifiedRecord], drafts: list[Draft], signer: SigningKey) -> list[VerifiedRecord]:
    """The records and some more behind them."""
    longer = list(records)
    for draft in drafts:
        at_us = START_US + len(longer) * 1_000_000
        longer.append(seal(draft, longer[-1].head if longer else None, at_us, signer))
    return longer


def export(records: list[VerifiedRecord] | list[SignedRecord]) -> bytes:
    """The file of an export."""
    return b"".join(export_line(record).encode() + b"\n" for record in records)


def untrusted(records: list[VerifiedRecord]) -> list[SignedRecord]:
    """The records as a file or table hands them out."""
    return [SignedRecord(record.text, record.hash, record.signature) for record in records]


def resign(text: str, signer: SigningKey) -> SignedRecord:
    """Any text, hashed and signed."""
    digest = hash_text(text)
    return SignedRecord(text, digest, signer.sign(bytes.fromhex(digest)).hex())


def altered(position: int, record: SignedRecord) -> bytes:
    """The clean chain with one record replaced."""
    records = untrusted(chain())
    records[position] = record
    return export(records)


def _rich() -> list[VerifiedRecord]:
    """Values that encoders like to spell differently."""
    payload: dict[str, JsonValue] = {
        "v": [1e-7, 1e16, 1e21, 123456789012345680.0, 5e-324, 0.1, 1.0, 100.0, -0.0, 1.5e-5, 1e23],
        "integers": [9007199254740993, 2**63, -(10**30), 10**127],
        "text": 'quote " backslash \\ tab \t line \n bell \x07 del \x7f é € 😀 \u2028',
        "😀": 1,
        "\ufb33": 2,
        "é": None,
        "": True,
        "nested": {"b": [[], {}, [[]]], "a": {"z": False}},
    }
    return extend([], [genesis(), Draft("event", payload, 'he said "hi" \\ é')], ONE)


def _good() -> Iterator[Vector]:
    ten = chain()
    yield Vector("plain", "ten records, the key pinned", export(ten), Expected(0, 10))
    yield Vector("self_declared", "the same, no key pinned", export(ten), Expected(6, 10), public_key=None)
    yield Vector(
        "checkpoint",
        "a checkpoint at the head",
        export(ten),
        Expected(0, 10),
        checkpoint=(9, ten[9].hash),
    )
    yield Vector(
        "values", "floats, long integers, escapes, keys beyond the BMP", export(_rich()), Expected(0, 2)
    )
    rotated = extend(chain(5), [rotation(TWO.public.hex)], ONE)
    rotated = extend(rotated, [event(6), event(7), rotation(THREE.public.hex)], TWO)
    rotated = extend(rotated, [event(9), event(10)], THREE)
    yield Vector(
        "rotation", "two rotations, each signed by the key before it", export(rotated), Expected(0, 11)
    )
    newer = extend(chain(3), [Draft("agent.quarantined", {"v": 9}, "trails"), event(4)], ONE)
    yield Vector("unknown_kind", "a kind that no version knows is no fault", export(newer), Expected(0, 5))
    still = list(seal_all([genesis(), event(1), event(2)], None, START_US, ONE))
    still.append(seal(event(3), still[-1].head, START_US - 600_000_000, ONE))
    yield Vector("clock_back", "the clock stepped back ten minutes", export(still), Expected(0, 4))
    cut = export(ten)[:-1]
    yield Vector("no_last_line_feed", "only the last line feed is missing", cut, Expected(0, 10))


def _bad_content() -> Iterator[Vector]:
    ten = untrusted(chain())
    five = ten[5]
    changed = five.text.replace('"n":5', '"n":6')
    yield Vector(
        "payload_byte",
        "one digit of a payload",
        altered(5, SignedRecord(changed, five.hash, five.signature)),
        Expected(1, 10, [(5, "content")]),
    )
    yield Vector(
        "payload_rehashed",
        "one digit of a payload, the hash made anew",
        altered(5, SignedRecord(changed, hash_text(changed), five.signature)),
        Expected(1, 10, [(5, "signature")]),
    )
    prev = five.text.replace(ten[4].hash, ten[3].hash)
    yield Vector(
        "prev_hash",
        "prev_hash changed",
        altered(5, SignedRecord(prev, five.hash, five.signature)),
        Expected(1, 10, [(5, "link")]),
    )
    upper = SignedRecord(five.text, five.hash.upper(), five.signature)
    yield Vector("hash_upper", "a hash in upper case", altered(5, upper), Expected(1, 10, [(5, "content")]))
    yield Vector(
        "prev_hash_upper",
        "prev_hash in upper case, hashed and signed",
        altered(5, resign(five.text.replace(ten[4].hash, ten[4].hash.upper()), ONE)),
        Expected(1, 10, [(5, "format")]),
    )
    spaced = five.text.replace('"kind":', '"kind": ')
    yield Vector(
        "not_canonical",
        "a space in the text, signed with the right key",
        altered(5, resign(spaced, ONE)),
        Expected(1, 10, [(5, "format")]),
    )


def _bad_signature() -> Iterator[Vector]:
    ten = untrusted(chain())
    five = ten[5]

    def signed_as(signature: str) -> bytes:
        return altered(5, SignedRecord(five.text, five.hash, signature))

    fault = Expected(1, 10, [(5, "signature")])
    yield Vector("signature_of_other", "another record's signature", signed_as(ten[4].signature), fault)
    yield Vector(
        "signature_stranger",
        "signed with another key",
        signed_as(STRANGER.sign(bytes.fromhex(five.hash)).hex()),
        fault,
    )
    r, s = five.signature[:64], int.from_bytes(bytes.fromhex(five.signature[64:]), "little")
    malleable = r + (s + ED25519_ORDER).to_bytes(32, "little").hex()
    yield Vector("signature_malleable", "the group order added to S", signed_as(malleable), fault)
    yield Vector("signature_upper", "a signature in upper case", signed_as(five.signature.upper()), fault)
    foreign = chain(signer=STRANGER)
    yield Vector(
        "resigned",
        "the whole chain signed anew with a key of the forger",
        export(foreign),
        Expected(7, 10),
    )
    yield Vector(
        "resigned_unpinned",
        "the same without a pinned key: consistent in itself, the signer not trusted",
        export(foreign),
        Expected(6, 10),
        public_key=None,
    )
    yield Vector(
        "small_order_key", "a key for which constants verify", _small_order(), _small_order_outcome(), None
    )


def _small_order() -> bytes:
    """A chain whose genesis record names a small-order key, with a constant for every signature."""
    constant = "01" + "00" * 63  # R is the neutral element, S is 0
    lines: list[SignedRecord] = []
    prev = ZERO_HASH
    for seq in range(3):
        kind, payload = "event", '{"n":1}'
        if seq == 0:
            kind, payload = "genesis", f'{{"log_id":"a","public_key":"{SMALL_ORDER_KEY}"}}'
        text = (
            f'{{"actor":"a","kind":"{kind}","payload":{payload},"prev_hash":"{prev}"'
            f',"seq":{seq},"timestamp":"{format_timestamp(START_US)}"}}'
        )
        prev = hash_text(text)
        lines.append(SignedRecord(text, prev, constant))
    return export(lines)


def _small_order_outcome() -> Expected:
    return Expected(1, 3, [(0, "signature")])


def _bad_order() -> Iterator[Vector]:
    ten = untrusted(chain())
    swapped = [*ten[:5], ten[6], ten[5], *ten[7:]]
    yield Vector("swapped", "two neighbours changed places", export(swapped), Expected(1, 10, [(5, "order")]))
    missing = [*ten[:5], *ten[6:]]
    yield Vector("missing", "a record taken out", export(missing), Expected(1, 9, [(5, "order")]))
    yield Vector("headless", "the first three taken away", export(ten[3:]), Expected(1, 7, [(0, "order")]))
    doubled = [*ten[:6], ten[5], *ten[6:]]
    yield Vector("doubled", "a record twice", export(doubled), Expected(1, 11, [(5, "fork")]))
    whole = chain()
    branch = extend(whole[:5], [Draft("event", {"n": "other"}, "agent-7")], ONE)[5]
    forked = [*whole[:6], branch, *whole[6:]]
    yield Vector(
        "fork", "two records of one seq, both signed", export(forked), Expected(1, 11, [(5, "fork")])
    )
    clamped = seal(event(5), whole[4].head, START_US, ONE).text
    earlier = clamped.replace(format_timestamp(START_US + 4_000_000), format_timestamp(START_US))
    yield Vector(
        "time_back",
        "a time before the predecessor's, signed",
        export([*untrusted(whole[:5]), resign(earlier, ONE)]),
        Expected(1, 6, [(5, "order")]),
    )
    bad = extend(chain(5), [rotation(TWO.public.hex)], STRANGER)
    bad = extend(bad, [event(6), event(7)], TWO)
    yield Vector(
        "rotation_forged",
        "a rotation that the key in force did not sign",
        export(bad),
        Expected(1, 8, [(5, "signature")]),
    )
    late = extend(chain(5), [rotation(TWO.public.hex), event(6), event(7)], ONE)
    yield Vector(
        "rotation_ignored",
        "the old key signs on after its rotation",
        export(late),
        Expected(1, 8, [(6, "signature")]),
    )
    weak = extend(chain(5), [rotation(SMALL_ORDER_KEY)], ONE)
    yield Vector(
        "rotation_weak", "a rotation to a weak key", export(weak), Expected(1, 6, [(5, "signature")])
    )


def _bad_whole() -> Iterator[Vector]:
    ten = chain()
    last = (9, ten[9].hash)
    yield Vector(
        "tail_cut",
        "the last three records gone; a checkpoint knows of them",
        export(ten[:7]),
        Expected(3, 7),
        checkpoint=last,
    )
    other = extend(ten[:8], [Draft("event", {"n": "other"}, "agent-7"), event(9)], ONE)
    yield Vector(
        "other_branch",
        "another branch, signed with the right key; a checkpoint knows the first",
        export(other),
        Expected(1, 10, [(9, "fork")]),
        checkpoint=last,
    )
    whole = export(ten)
    yield Vector("line_cut", "ends in the middle of a line", whole[:-100], Expected(3, 9))
    yield Vector("first_line_cut", "ends in the middle of the first line", whole[:100], Expected(3, 0))
    crlf = whole.replace(b"\n", b"\r\n")
    yield Vector("crlf", "saved with CRLF line ends", crlf, Expected(1, 10, [(None, "format")]))
    bom = b"\xef\xbb\xbf" + whole
    yield Vector("bom", "saved with a byte order mark", bom, Expected(1, 10, [(None, "format")]))
    lines = whole.splitlines(keepends=True)
    junk = b"".join([*lines[:5], b"\n", *lines[5:]])
    yield Vector("blank_line", "an empty line in the middle", junk, Expected(1, 11, [(None, "format")]))
    latin = whole.replace(b"step 5", b"step \xff")
    yield Vector("not_utf8", "a byte that is not UTF-8", latin, Expected(1, 10, [(None, "format")]))
    no_genesis = b"".join([b"{}\n", *lines[1:]])
    yield Vector(
        "no_genesis",
        "the first line is not a record; the rest verifies under the pinned key",
        no_genesis,
        Expected(1, 10, [(None, "format")]),
    )
    yield Vector("empty", "no byte at all", b"", Expected(4, 0))
    yield Vector("empty_checkpoint", "no byte, but a checkpoint", b"", Expected(3, 0), checkpoint=last)


def vectors() -> list[Vector]:
    """All vectors, in the order of the expectations file."""
    return [*_good(), *_bad_content(), *_bad_signature(), *_bad_order(), *_bad_whole()]


def files() -> dict[str, bytes]:
    """Every file by its path below this folder, the expectations included."""
    made = {vector.path: vector.content for vector in vectors()}
    entries = [
        {
            "file": vector.path,
            "note": vector.note,
            "public_key": vector.public_key,
            "checkpoint": vector.checkpoint and list(vector.checkpoint),
            "exit_code": vector.expected.exit_code,
            "checked": vector.expected.checked,
            "faults": [{"seq": seq, "fault": fault} for seq, fault in vector.expected.faults],
        }
        for vector in vectors()
    ]
    made["expectations.json"] = (json.dumps(entries, indent=1, ensure_ascii=False) + "\n").encode()
    return made


def main() -> None:
    """Writes the files."""
    for name, content in files().items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
