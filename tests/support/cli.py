"""``trails`` in this process: its exit code, what it printed, and that its three forms agree."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import msgspec
import pytest

from app.chain.verdict import Verdict
from app.cli.exits import run_command
from app.cli.main import trails


class Result(msgspec.Struct, frozen=True):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output as one JSON document."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def run_trails(*arguments: object, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Result:
    """Runs ``trails`` with nothing of our own settings in its environment."""
    out, err = _Bytes(), _Bytes()
    with _environment(env or {}), _standard_input(stdin), redirect_stdout(out), redirect_stderr(err):
        code = run_command(trails, [str(argument) for argument in arguments])
    return Result(code, out.text, err.text)


def verify(*arguments: object, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Result:
    """``trails verify`` in its three forms, which must agree; returns the one with ``--json`` (case C21)."""
    text = run_trails("verify", *arguments, env=env, stdin=stdin)
    found = run_trails("verify", *arguments, "--json", env=env, stdin=stdin)
    quiet = run_trails("verify", *arguments, "--quiet", env=env, stdin=stdin)
    assert text.code == found.code == quiet.code, (text, found, quiet)
    assert quiet.out == quiet.err == ""
    verdict = Verdict(found.json["verdict"])
    assert verdict.exit_code == found.code == found.json["exit_code"]
    assert text.out.splitlines()[-1].startswith(f"{verdict.value}: {found.json['checked']} record")
    return found


def faults(result: Result) -> list[tuple[int | None, str]]:
    """Seq and class of every fault listed, over all chains."""
    return [
        (fault["seq"], fault["fault"]) for chain in result.json["chains"] for fault in chain.get("faults", ())
    ]


class _Bytes(io.TextIOWrapper):
    """A standard stream that keeps what is written, as text or as bytes."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        self.flush()
        kept = self.buffer
        assert isinstance(kept, io.BytesIO)
        return kept.getvalue().decode("utf-8")


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TRAILS_")]:
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        yield


@contextmanager
def _standard_input(content: bytes) -> Iterator[None]:
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdin = before
