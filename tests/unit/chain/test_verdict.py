"""Verdicts: their exit codes, and that "broken" outranks everything."""

from __future__ import annotations

import itertools

import pytest

from app.chain.verdict import EXIT_USAGE, Verdict, worst

EXIT_CODES = {
    Verdict.VERIFIED: 0,
    Verdict.TAMPERED: 1,
    Verdict.INCOMPLETE: 3,
    Verdict.NOTHING: 4,
    Verdict.UNCHECKED: 5,
    Verdict.SELF_DECLARED: 6,
    Verdict.OTHER_KEY: 7,
    Verdict.RESUMED: 8,
}

BY_SEVERITY = [
    Verdict.TAMPERED,
    Verdict.INCOMPLETE,
    Verdict.OTHER_KEY,
    Verdict.UNCHECKED,
    Verdict.NOTHING,
    Verdict.SELF_DECLARED,
    Verdict.RESUMED,
    Verdict.VERIFIED,
]


def test_c21_each_verdict_has_its_own_exit_code() -> None:
    assert {verdict: verdict.exit_code for verdict in Verdict} == EXIT_CODES
    assert EXIT_USAGE not in EXIT_CODES.values()


@pytest.mark.parametrize(("graver", "milder"), list(itertools.combinations(BY_SEVERITY, 2)))
def test_c22_the_graver_verdict_outranks_the_milder(graver: Verdict, milder: Verdict) -> None:
    assert worst([milder, graver, milder]) is graver
    assert worst([graver, milder]) is graver


def test_c20_no_verdict_at_all_is_nothing_to_verify() -> None:
    assert worst([]) is Verdict.NOTHING
