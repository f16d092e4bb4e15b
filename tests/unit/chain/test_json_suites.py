"""The published suites: JSONTestSuite for what is JSON, the RFC 8785 examples for how it is spelled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.chain.canonical import canonical, canonical_parsed
from app.chain.strict import parse
from app.errors import InvalidJsonError

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"
SUITE = sorted((SHARED / "json-test-suite").glob("test_parsing__*.json"))
TRANSFORM = sorted((SHARED / "json-test-suite").glob("test_transform__*.json"))
JCS = sorted((SHARED / "jcs-rfc8785").glob("input__*.json"))

STRICTER_THAN_RFC_8259 = {
    "y_object_duplicated_key.json",
    "y_object_duplicated_key_and_value.json",
    "y_object_escaped_null_in_key.json",
    "y_string_null_escape.json",
}
"""Well-formed JSON that our rule refuses: duplicate keys, and U+0000, which jsonb cannot hold."""

IMPLEMENTATION_DEFINED_ACCEPTED = {
    "i_number_double_huge_neg_exp.json",
    "i_number_real_underflow.json",
    "i_number_too_big_neg_int.json",
    "i_number_too_big_pos_int.json",
    "i_number_very_big_negative_int.json",
}
"""Left open by RFC 8259 and read by us: underflow is zero, and integers keep up to 128 digits."""

if not SUITE:
    pytestmark = pytest.mark.skip(reason="the published JSON suites are not on this machine")


def _case(path: Path) -> str:
    return path.name.removeprefix("test_parsing__")


def _accepted(raw: bytes) -> bool:
    try:
        parse(raw)
    except InvalidJsonError:
        return False
    return True


@pytest.mark.parametrize("path", SUITE, ids=_case)
def test_every_case_of_the_suite_is_judged_by_our_rule(path: Path) -> None:
    case = _case(path)
    wanted = case.startswith("y_") and case not in STRICTER_THAN_RFC_8259
    assert _accepted(path.read_bytes()) is (wanted or case in IMPLEMENTATION_DEFINED_ACCEPTED)


@pytest.mark.parametrize("path", [path for path in SUITE if _accepted(path.read_bytes())], ids=_case)
def test_what_is_accepted_means_the_same_to_another_parser(path: Path) -> None:
    parsed = parse(path.read_bytes())
    assert parsed.value == json.loads(path.read_bytes())
    again = parse(canonical_parsed(parsed).encode())
    assert again.value == parsed.value


@pytest.mark.parametrize("path", TRANSFORM, ids=lambda path: path.name)
def test_what_parsers_like_to_transform_is_kept_or_refused(path: Path) -> None:
    raw = path.read_bytes()
    ambiguous = "same_key" in path.name or "invalid_codepoint" in path.name
    assert _accepted(raw) is not ambiguous
    assert ambiguous or parse(raw).value == json.loads(raw)


@pytest.mark.parametrize("path", JCS, ids=lambda path: path.name)
def test_rfc8785_examples_are_written_as_published(path: Path) -> None:
    published = path.with_name(path.name.replace("input__", "output__")).read_text(encoding="utf-8")
    parsed = parse(path.read_bytes())
    assert canonical_parsed(parsed) == published.rstrip("\n")
    assert canonical(parsed.value) == published.rstrip("\n")
