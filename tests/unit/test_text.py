"""Text of records on a terminal: escaped on one line, look-alike names marked (cases H21, G19)."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text import look_alike, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [bold]text[/bold]", "plain [bold]text[/bold]"),
        ("a\r\nfake line", r"a\r\nfake line"),
        ("\x1b[2J\x9b31m", r"\u001b[2J\u009b31m"),
        ("a\u0085b\u2028c\u2029d", r"a\u0085b\u2028c\u2029d"),
        ("user\u202etxt.exe\u2066x", r"user\u202etxt.exe\u2066x"),
        ("no\u200bspace\ufeff\u00a0x\u3164", r"no\u200bspace\ufeff\u00a0x\u3164"),
        ("tag\U000e0041", r"tag\udb40\udc41"),
        ("tab\there", r"tab\there"),
        ("Grüße, 世界, e\u0301, 🙂", "Grüße, 世界, e\u0301, 🙂"),
    ],
)
def test_h21_what_could_steer_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_h21_whatever_an_agent_wrote_is_one_harmless_line(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp", "Cs"} for char in shown)


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_an_escaped_json_text_stays_the_same_value(value: object) -> None:
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


@pytest.mark.parametrize(
    "name",
    [
        "d\u0435lete_file",
        "\uff44elete_file",
        "delete_file\u200b",
        "delete_fi\u0406e",
        "dele\u0301te",
        "x\u202ey",
    ],
)
def test_g19_look_alike_tool_names_are_marked(name: str) -> None:
    assert look_alike(name) is not None


@pytest.mark.parametrize(
    "name", ["delete_file", "http.get-v2", "löschen", "удалить_файл", "ファイル削除api", "파일"]
)
def test_g19_names_of_one_script_are_not_marked(name: str) -> None:
    assert look_alike(name) is None
