"""The page on the record format: its verifier judges stored chains, its kinds are those of the program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from app.chain.record import KNOWN_KINDS, TRAILER_LENGTH
from tests.integration.http.client import Client
from tests.integration.http.conftest import operator, service
from tests.support.pages import FOLDER, ROOT, noted, page_at

__all__ = ["operator", "service"]

PAGE: Final = page_at(FOLDER / "record-format.md")
VECTORS: Final = ROOT / "tests" / "vectors"
PINNED: Final = [
    entry
    for entry in json.loads((VECTORS / "expectations.json").read_text("utf-8"))
    if entry["public_key"] is not None
]
UNSEEN: Final = {"bad/rotation_weak.jsonl"}
"""What the page says that its verifier does not look for."""


@pytest.mark.parametrize("entry", PINNED, ids=[entry["file"] for entry in PINNED])
def test_the_verifier_of_the_page_agrees_on_stored_chains(entry: dict[str, Any]) -> None:
    kept = [f"{entry['checkpoint'][0]}:{entry['checkpoint'][1]}"] if entry["checkpoint"] else []
    judged = run_verifier(str(VECTORS / entry["file"]), entry["public_key"], *kept)
    assert "Traceback" not in judged.stderr
    is_sound = entry["exit_code"] == 0 or entry["file"] in UNSEEN
    assert (judged.returncode == 0) is is_sound, judged.stdout + judged.stderr


def run_verifier(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", noted("python verifier"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_verifier_of_the_page_says_how_it_is_called() -> None:
    told = run_verifier()
    assert told.returncode == 1
    assert "FILE PUBLIC_KEY [SEQ:HASH]" in told.stderr
    assert "Traceback" not in told.stderr


def test_the_verifier_takes_what_the_page_says_is_left_of_an_export_that_announces_its_end(
    operator: Client, tmp_path: Path
) -> None:
    operator.create("scout", None)
    [pattern] = re.findall(r"`grep -v '([^']+)'`", PAGE.text)
    whole, bare = tmp_path / "whole.jsonl", tmp_path / "bare.jsonl"
    whole.write_bytes(operator.get("/v1/agents/scout/export").raw)
    with bare.open("wb") as file:
        subprocess.run(["grep", "-v", pattern, str(whole)], stdout=file, check=True, timeout=60)
    key = operator.get("/v1/public-key").json["public_key"]
    assert run_verifier(str(whole), key).returncode == 1
    judged = run_verifier(str(bare), key)
    assert judged.returncode == 0, judged.stderr
    assert judged.stdout.startswith("sound up to 0:")


def test_kinds_are_those_of_the_program() -> None:
    [table] = re.findall(r"^\| kind \|.*?\n\n", PAGE.text, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    assert {kind for cell in cells for kind in re.findall(r"\w+", cell)} == KNOWN_KINDS


def test_the_tail_is_as_long_as_told() -> None:
    assert f"its last {TRAILER_LENGTH} characters" in PAGE.text.replace("\n", " ")
