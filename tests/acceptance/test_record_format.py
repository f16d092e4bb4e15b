"""The page on the record format: its verifier judges stored chains, its kinds are those of the program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any, Final

import pytest

from app.chain.record import KNOWN_KINDS, TRAILER_LENGTH
from tests.support.pages import FOLDER, ROOT, noted, page_at

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
    command = [sys.executable, "-c", noted("python verifier"), str(VECTORS / entry["file"])]
    judged = subprocess.run(
        [*command, entry["public_key"], *kept], capture_output=True, text=True, check=False, timeout=60
    )
    assert "Traceback" not in judged.stderr
    is_sound = entry["exit_code"] == 0 or entry["file"] in UNSEEN
    assert (judged.returncode == 0) is is_sound, judged.stdout + judged.stderr


def test_kinds_are_those_of_the_program() -> None:
    [table] = re.findall(r"^\| kind \|.*?\n\n", PAGE.text, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    assert {kind for cell in cells for kind in re.findall(r"\w+", cell)} == KNOWN_KINDS


def test_the_tail_is_as_long_as_told() -> None:
    assert f"its last {TRAILER_LENGTH} characters" in PAGE.text.replace("\n", " ")
