"""``trails verify FILE`` of long files: chunks, and marks to go on from (case T11)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.chain.audit import ChainAudit
from app.chain.keys import SigningKey
from app.chain.link import seal_all
from app.chain.record import Draft, VerifiedRecord, export_line
from app.verification import marks
from tests.support.cli import Result, faults, run_trails, verify
from tests.support.jobs import shared_files
from tests.vectors.make_vectors import ONE, START_US, TWO

GENESIS = Draft("genesis", {"log_id": "a", "log_uuid": "u-1", "public_key": ONE.public.hex}, "a")
EVENT = Draft("event", {"data": "x" * 40}, "a")


def chain(records: int) -> list[VerifiedRecord]:
    """A chain whose key is another one from the middle on."""
    half = records // 2
    first = seal_all([GENESIS, *[EVENT] * half], None, START_US, ONE)
    rotation = Draft("key_rotated", {"public_key": TWO.public.hex}, "a")
    rotated = seal_all([rotation], first[-1].head, START_US, ONE)
    return [*first, *rotated, *seal_all([EVENT] * (records - half - 2), rotated[-1].head, START_US, TWO)]


CHAIN = chain(40)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "export.jsonl", CHAIN[:30])


def write(path: Path, records: list[VerifiedRecord]) -> Path:
    path.write_bytes(b"".join(export_line(record).encode() + b"\n" for record in records))
    return path


def pinned(*arguments: object, stdin: bytes = b"") -> Result:
    return verify(*arguments, "--public-key", ONE.public.hex, stdin=stdin)


def only(result: Result) -> dict[str, Any]:
    [found] = result.json["chains"]
    return dict(found)


def test_t11_workers_prove_all_lines_but_those_behind_a_rotation_that_was_not_known(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt, told = ChainAudit.adopt, 0

    def counting(audit: ChainAudit, stretch: Any) -> bool:
        nonlocal told
        taken = adopt(audit, stretch)
        told += stretch.records if taken else 0
        return taken

    monkeypatch.setattr(ChainAudit, "adopt", counting)
    with shared_files(1):
        assert run_trails("verify", file, "--jobs", 2, "--quiet").code == 6
    assert told > 20


def test_t11_a_worker_that_dies_leaves_nothing_verified(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.verification.files.LONG_BYTES", 0)
    monkeypatch.setattr("app.verification.chunks.prove_lines", die)
    result = run_trails("verify", file, "--jobs", 2, "--json")
    assert (result.code, result.json["checked"]) == (5, 0)
    assert "killed, or memory ran out" in only(result)["note"]


def die(_chunk: object) -> None:
    """What a process does that is killed."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def test_t11_a_file_that_has_grown_is_verified_from_its_mark_on(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert pinned(file, "--mark", mark).code == 0
    assert (mark.with_name("mark.key").stat().st_mode | mark.stat().st_mode) & 0o777 == 0o600
    grown = write(tmp_path / "moved.jsonl", CHAIN)
    result = pinned(grown, "--resume", mark)
    assert (result.code, result.json["verdict"], only(result)["checked"]) == (
        8,
        "verified from a mark on",
        11,
    )
    assert only(result)["mark"]["seq"] == 29
    assert only(result)["head"] == {"seq": 39, "hash": CHAIN[39].hash}
    from_pipe = pinned("-", "--resume", mark, stdin=grown.read_bytes())
    assert only(from_pipe) == {**only(result), "source": "-"}
    with shared_files(300):
        shared = run_trails(
            "verify", grown, "--resume", mark, "--jobs", 2, "--json", "--public-key", ONE.public.hex
        )
    assert shared.json == result.json


def changed(line: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [
        text.replace(b'"x', b'"y') if number == line else text for number, text in enumerate(lines)
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (changed(29), (29, "fork")),
        (changed(33), (33, "content")),
        (lambda lines: lines[:29], (29, "order")),
        (lambda lines: lines[:33] + lines[34:], (33, "order")),
    ],
)
def test_t11_what_was_changed_from_the_mark_on_is_found_in_a_file(
    file: Path, tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], expected: tuple[int, str]
) -> None:
    mark = tmp_path / "mark"
    assert pinned(file, "--mark", mark).code == 0
    lines = write(tmp_path / "grown.jsonl", CHAIN).read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(change(lines)))
    result = pinned(file, "--resume", mark)
    assert (result.code, expected in faults(result)) == (1, True), faults(result)


def test_t11_a_mark_is_not_used_for_another_chain_or_before_a_head(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert pinned(file, "--mark", mark).code == 0
    assert pinned(file, "--resume", mark, "--checkpoint", f"3:{CHAIN[3].hash}").code == 0
    other = seal_all([Draft("genesis", {**GENESIS.payload, "more": 1}, "a"), EVENT], None, START_US, ONE)
    result = pinned(write(file, list(other)), "--resume", mark)
    assert (result.code, only(result)["mark"]) == (0, None)


def test_t11_a_mark_of_a_database_or_of_other_pins_is_refused_for_a_file(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert pinned(file, "--mark", mark).code == 0
    result = verify(file, "--resume", mark)
    assert (result.code, result.json["checked"]) == (5, 0)
    assert "other keys trusted" in result.json["findings"][0]["reason"]
    said = json.loads(mark.read_bytes().splitlines()[0])
    key = SigningKey.from_raw(bytes.fromhex(mark.with_name("mark.key").read_text().strip()))
    writer = marks.MarkWriter(mark, key, of="database", trust=said["trust"])
    writer.write()
    assert "is of database" in pinned(file, "--resume", mark).json["findings"][0]["reason"]


def test_t11_a_mark_that_cannot_be_written_is_said_and_hides_nothing(file: Path, tmp_path: Path) -> None:
    write(file, [*CHAIN[:5], *CHAIN[6:]])
    (tmp_path / "mark").mkdir()
    result = pinned(file, "--mark", tmp_path / "mark")
    assert (result.code, faults(result)) == (1, [(5, "order")])
    assert "cannot be written" in result.json["findings"][0]["reason"]
