"""Administrative acts in words: none that is recorded anywhere lacks them, and none breaks on odd content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from app.console.acts import known_acts, sentence

APP = Path(__file__).parent.parent.parent.parent / "app"
RECORDED = {
    act
    for path in APP.rglob("*.py")
    for act in re.findall(r'"act": "([a-z_]+)"', path.read_text(encoding="utf-8"))
}


def test_every_act_that_is_recorded_has_words() -> None:
    assert len(RECORDED) > 10
    assert RECORDED - set(known_acts()) == set()


@pytest.mark.parametrize("act", known_acts())
@pytest.mark.parametrize("odd", [None, 7, "x", ["x"], {"agent_id": ["\u202e"]}])
def test_a_sentence_stands_whatever_the_payload_holds(act: str, odd: Any) -> None:
    names = ("key", "agents", "agent_id", "reason", "webhook", "rows", "to", "name", "length", "session_id")
    assert sentence({"act": act, **dict.fromkeys(names, odd)}).isprintable()
    assert sentence({"act": act})


def test_an_act_without_words_is_called_by_its_name() -> None:
    assert sentence({"act": "moon_landed", "name": "Ada"}) == "moon_landed: Ada"
    assert sentence({}) == "act without a name"
