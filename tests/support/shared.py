"""The shared collection of real agent runs: read where it is, never copied into the project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def manifest() -> dict[str, Any]:
    """The manifest of expected counts; skips the test where the collection is absent."""
    path = SHARED_DATA / "MANIFEST.json"
    if not path.exists():
        pytest.skip("the shared collection of real runs is not on this machine")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def files_of(kind: str) -> list[dict[str, Any]]:
    """The manifest's entries of one format, such as ``drift``."""
    return [entry for entry in manifest()["files"] if entry["format"] == kind]
