"""``trails demo``: every guarantee holds, and a broken one is named."""

from __future__ import annotations

import pytest

from app.cli.demo_guarantees import CLASSIC_QUERY, GUARANTEES
from tests.support.cli import run_trails


def test_the_demo_shows_that_every_guarantee_holds() -> None:
    shown = run_trails("demo")
    assert shown.code == 0, shown.out
    assert shown.out.count("\n  held\n") == len(GUARANTEES)
    assert CLASSIC_QUERY.strip() in shown.out


@pytest.mark.parametrize("name", ["tampering", "cut"])
def test_the_demo_can_fail_and_names_what_did_not_hold(name: str) -> None:
    shown = run_trails("demo", "--break", name)
    assert shown.code == 1
    assert shown.out.splitlines()[-1] == f"Guarantees that did not hold: {name}"
