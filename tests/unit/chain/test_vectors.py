"""The stored chains: making them again changes nothing, and our verifier says what is written beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.chain.export import verify_export
from app.chain.keys import PublicKey
from tests.vectors.make_vectors import HERE, Vector, files, vectors

EXPECTATIONS = json.loads((HERE / "expectations.json").read_text(encoding="utf-8"))
STORED = [path for path in sorted(HERE.rglob("*.json*")) if "__pycache__" not in path.parts]


def test_making_the_vectors_again_changes_nothing() -> None:
    stored = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in STORED}
    assert stored == files()


@pytest.mark.parametrize("entry", EXPECTATIONS, ids=[entry["file"] for entry in EXPECTATIONS])
def test_c31_a_stored_chain_gets_the_verdict_that_is_written_beside_it(entry: dict[str, Any]) -> None:
    key = None if entry["public_key"] is None else PublicKey.load(entry["public_key"])
    checkpoints = dict([entry["checkpoint"]] if entry["checkpoint"] else [])
    with (HERE / entry["file"]).open("rb") as lines:
        report = verify_export(lines, key, checkpoints)
    assert report.verdict.exit_code == entry["exit_code"]
    assert report.checked == entry["checked"]
    faults = [{"seq": fault.seq, "fault": fault.fault} for fault in report.first_faults]
    assert faults == entry["faults"]


def _vector(name: str) -> Vector:
    (found,) = [vector for vector in vectors() if vector.name == name]
    return found


def _reasons(content: bytes) -> list[str]:
    report = verify_export(content.splitlines(keepends=True))
    return [fault.reason for fault in report.first_faults]


def test_c32_each_way_a_file_was_altered_is_said_once() -> None:
    assert _reasons(_vector("crlf").content) == ["file altered: line endings (a carriage return was added)"]
    assert _reasons(_vector("bom").content) == ["file altered: it begins with a byte order mark"]
    both = b"\xef\xbb\xbf" + _vector("crlf").content
    assert len(_reasons(both)) == 2


def test_c32_the_records_of_an_altered_file_are_verified_all_the_same() -> None:
    with_fault = _vector("payload_byte").content.replace(b"\n", b"\r\n")
    report = verify_export(with_fault.splitlines(keepends=True))
    assert [(fault.fault, fault.line) for fault in report.first_faults] == [("format", 1), ("content", 6)]


def test_c32_a_file_cut_at_any_byte_is_incomplete_or_whole_up_to_a_line() -> None:
    whole = _vector("plain").content
    key = PublicKey.load(str(_vector("plain").public_key))
    for length in range(1, len(whole), 37):
        lines = whole[:length].splitlines(keepends=True)
        report = verify_export(lines, key)
        complete = whole[:length].endswith((b"\n", b'"}'))
        assert report.verdict.exit_code == (0 if complete else 3)
        assert report.checked == len(lines) - (not complete)
