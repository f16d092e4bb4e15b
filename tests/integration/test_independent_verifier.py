"""A verifier in another language, without a canonicaliser, comes to the same verdict on every vector."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app.chain.export import verify_export
from app.chain.keys import PublicKey

TESTS = Path(__file__).parent.parent
VECTORS = TESTS / "vectors"
EXPECTATIONS = json.loads((VECTORS / "expectations.json").read_text(encoding="utf-8"))
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


def _node(*arguments: str) -> int:
    command = [str(NODE), str(TESTS / "verifiers" / "verify.mjs"), *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


@pytest.mark.parametrize("entry", EXPECTATIONS, ids=[entry["file"] for entry in EXPECTATIONS])
def test_the_independent_verifier_agrees_with_ours(entry: dict[str, Any]) -> None:
    path = VECTORS / entry["file"]
    arguments = [str(path)]
    key = entry["public_key"]
    if key is not None:
        arguments += ["--public-key", key]
    checkpoints: dict[int, str] = {}
    if entry["checkpoint"] is not None:
        seq, digest = entry["checkpoint"]
        checkpoints = {seq: digest}
        arguments += ["--checkpoint", f"{seq}:{digest}"]
    with path.open("rb") as lines:
        ours = verify_export(lines, None if key is None else PublicKey.load(key), checkpoints)
    assert _node(*arguments) == ours.verdict.exit_code == entry["exit_code"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["a", "b"], 2),
        (["a", "--public-key", "xy"], 2),
        (["a", "--checkpoint", "1"], 2),
        (["gone"], 5),
    ],
)
def test_the_independent_verifier_tells_usage_and_unreadable_files_apart(
    arguments: list[str], code: int
) -> None:
    assert _node(*arguments) == code


def test_the_independent_verifier_calls_no_bundle_tampered_that_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "audit.zip", "w") as bundle:
        bundle.writestr("manifest.json", "{}")
    assert _node(str(tmp_path / "audit.zip")) == 5
