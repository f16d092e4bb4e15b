"""Redaction: what is taken out, what stays, and what is said of it (T01)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain.canonical import canonical
from app.errors import InvalidMemberError
from app.redaction import DEFAULT_RULES, RuleList
from app.redaction.names import MEANINGS
from app.redaction.patterns import BUILT_IN, MARK
from app.redaction.redactor import MAX_FOUND, Findings, Redactor

ALL = RuleList(1, tuple(BUILT_IN))


def redact(value: Any, rules: RuleList = DEFAULT_RULES) -> tuple[Any, list[tuple[str, str]]]:
    found = Findings()
    kept = Redactor(rules, bytes(32)).value(value, "/input", found)
    return kept, [(one.path, one.rule) for one in found.removed]


def test_every_pattern_has_a_name_and_a_meaning() -> None:
    assert list(BUILT_IN) == list(MEANINGS) == [pattern.name for pattern in BUILT_IN.values()]


def nested(value: Any) -> str:
    return json.dumps({"a": json.dumps(value)})


def test_t01_secrets_in_members_of_any_depth_are_taken_out_and_told_of() -> None:
    asked: dict[str, Any] = {
        "headers": {"Authorization": "Bearer T1"},
        "cfg": [{"api_key": "T2"}],
        "password": "T3",
        "Cookie": "s=T4",
        "private_key": "T5",
        "amount": 5,
    }
    kept, told = redact(asked)
    assert kept == {
        "headers": {"Authorization": MARK},
        "cfg": [{"api_key": MARK}],
        "password": MARK,
        "Cookie": MARK,
        "private_key": MARK,
        "amount": 5,
    }
    assert {path for path, _ in told} == {
        "/input/headers/Authorization", "/input/cfg/0/api_key", "/input/password", "/input/Cookie",
        "/input/private_key",
    }  # fmt: skip
    assert {rule for _, rule in told} == {"secret_members"}
    assert list(asked.values())[2] == "T3", "what was given is left as it is"


@pytest.mark.parametrize(
    "name",
    ["password", "PASSWORD", "db_password", "smtpPassword", "passwd", "pwd", "client_secret", "apiKey",
     "x-api-key", "AWS_SECRET_ACCESS_KEY", "access_token", "refreshToken", "Set-Cookie", "token", "id_token",
     "proxy-authorization", "ssh_private_key", "settings_password", "islandSecret",
     "credentials", "passphrase", "secret", "passcode", "GITHUB_TOKEN", "slackBotToken",
     "X-Amz-Security-Token", "PRIVATE-TOKEN", "x-csrf-token", "Ocp-Apim-Subscription-Key", "AccountKey",
     "HTTP_AUTHORIZATION", "cookies",
     "http.request.header.authorization", "http.response.header.set-cookie", "passwords", "api_keys", "jwt"],
)  # fmt: skip
def test_t01_names_of_members_that_hold_secrets(name: str) -> None:
    assert redact({name: "hunter2"})[0] == {name: MARK}
    assert redact({name: ["a", {"b": "c"}]})[0] == {name: MARK}


@pytest.mark.parametrize(
    "value",
    [
        {"next_page_token": "abc", "max_tokens": 5, "token": 128, "total_tokens": 12},
        {"password": None, "secret": "", "api_key": False, "credentials": {}},
        {"properties": {"password": {"type": "string", "description": "of the account"}}},
        {"update_password": "Write", "resetPassword": 1, "has_secret": "yes", "check-api-key": "ok"},
        {"passwords_changed": 3, "secretary": "Ada", "cookies": 2, "authorizations": []},
        "The password is at least 8 characters; a cookie: a small text. Basic understanding of bearer bonds.",
        "a password 'must be long', a token \"\", the secret of 'Monkey Island'",
        "total_tokens=5&next_page_token=abc",
        {"secrets": 3, "passwords": 2, "user.token": 5, "pad_token": "<pad>", "tokens": ["a", "b"]},
        {"name": "update_password", "value": "x"},
        {"name": "password", "type": "string"},
        "login(password=password, token=None, secret=self.secret, jwt = encode(claims), api_key=$API_KEY)",
        "password: str\n token: string;\n secret: base64\n api_key: u64\nAuthorization: required",
        'password = getpass("Password: ")\nprint("x")',
        "https://example.com:8080/a?b=c and user@example.com",
        "sk-learn and hf_hub and ghp_ are words; AKIA too",
        {"card": 4111111111111111},
    ],
)
def test_what_is_no_secret_stays_the_very_object(value: Any) -> None:
    kept, told = redact(value)
    assert kept is value
    assert told == []


@pytest.mark.parametrize(
    ("text", "kept", "rule"),
    [
        ("approved with Bearer T1", f"approved with Bearer {MARK}", "bearer_tokens"),
        ("curl -H 'Authorization: Bearer ab'", f"curl -H 'Authorization: Bearer {MARK}'", "secret_members"),
        ("Cookie: s=T4; b=c\nHost: a", f"Cookie: {MARK}\nHost: a", "secret_members"),
        ('{"password": "T3", "a": 1}', f'{{"password": "{MARK}", "a": 1}}', "secret_members"),
        ('{"password": "T\\"3", "a": 1}', f'{{"password": "{MARK}", "a": 1}}', "secret_members"),
        (nested({"password": 'T"3'}), nested({"password": MARK}), "secret_members"),
        ("{'api_key': 'T2'}", f"{{'api_key': '{MARK}'}}", "secret_members"),
        ('{"pin_password": 1234}', f'{{"pin_password": {MARK}}}', "secret_members"),
        ("DB_PASSWORD=hunter2 X=1", f"DB_PASSWORD={MARK} X=1", "secret_members"),
        ("GET /?access_token=abc&b=1", f"GET /?access_token={MARK}&b=1", "secret_members"),
        ("the password is 'hunter2'.", f"the password is '{MARK}'.", "secret_members"),
        ('set the API key to "zz-91" and go', f'set the API key to "{MARK}" and go', "secret_members"),
        ("x-api-key: zzz", f"x-api-key: {MARK}", "secret_members"),
        ("db:\n  password: hunter2\n  port: 5", f"db:\n  password: {MARK}\n  port: 5", "secret_members"),
        ("{password: 'hunter', a: 1}", f"{{password: '{MARK}', a: 1}}", "secret_members"),
        ("authorization: 7f2a9c11\r\nHost: a", f"authorization: {MARK}\r\nHost: a", "secret_members"),
        ("Set-Cookie: sid=a1; Path=/\r\nHost: a", f"Set-Cookie: {MARK}\r\nHost: a", "secret_members"),
        ("PRIVATE-TOKEN: zz", f"PRIVATE-TOKEN: {MARK}", "secret_members"),
        ("os.environ['API_KEY'] = 'zz'", f"os.environ['API_KEY'] = '{MARK}'", "secret_members"),
        ("x --api-key zz91x --verbose", f"x --api-key {MARK} --verbose", "secret_members"),
        ("curl -s -u ada:pw https://a", f"curl -s -u ada:{MARK} https://a", "secret_members"),
        ("<db:password>pw</db:password>", f"<db:password>{MARK}</db:password>", "secret_members"),
        ('<add key="Password" value="pw"/>', f'<add key="Password" value="{MARK}"/>', "secret_members"),
        ("access_token%3Dabc&b", f"access_token%3D{MARK}&b", "secret_members"),
        ("my password is hunter2 now", f"my password is {MARK} now", "secret_members"),
        ("password   := 'hunter2'", f"password   := '{MARK}'", "secret_members"),
        ("Authorization:     Bearer      ab", f"Authorization:     Bearer      {MARK}", "secret_members"),
        ("bearer: abc123", f"bearer: {MARK}", "bearer_tokens"),
        ("/b?sv=1&sig=abcdefgh12345678%3D&x=1", f"/b?sv=1&sig={MARK}&x=1", "cloud_keys"),
        ("postgresql://u:p@w@h/db", f"postgresql://u:{MARK}@h/db", "url_passwords"),
        ("postgresql://u:pw@h/db", f"postgresql://u:{MARK}@h/db", "url_passwords"),
        ("AKIAIOSFODNN7EXAMPLE", MARK, "cloud_keys"),
        ("use ghp_" + "a1" * 18 + ".", f"use {MARK}.", "cloud_keys"),
        ("sk-ant-api03-" + "abc1" * 10, MARK, "cloud_keys"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_1", MARK, "bearer_tokens"),
        ("trk_" + "0" * 32 + "." + "1" * 16 + "." + "a" * 43 + "." + "2" * 16, MARK, "bearer_tokens"),
        ("a -----BEGIN PRIVATE KEY-----\nMI\n-----END PRIVATE KEY----- b", f"a {MARK} b", "private_keys"),
        ("-----BEGIN PRIVATE KEY-----\nMII", MARK, "private_keys"),
        ("Zoë: bearer abc123, ünï", f"Zoë: bearer {MARK}, ünï", "bearer_tokens"),
    ],
)  # fmt: skip
def test_t01_secrets_within_text(text: str, kept: str, rule: str) -> None:
    found, told = redact(text)
    assert found == kept
    assert told == [("/input", rule)]
    assert redact(kept) == (kept, []), "what was redacted is redacted no further"


def test_a_pair_of_a_name_and_a_value_is_a_member() -> None:
    for name in ("Authorization", "X-Api-Key", "DB_PASSWORD"):
        pair = {"name": name, "value": "zz"}
        assert redact([pair])[0] == [{"name": name, "value": MARK}]
        assert redact(json.dumps([pair]), RuleList(1, ()))[0] == json.dumps([pair])
    assert redact({"key": "Cookie", "value": "s=1"}) == (
        {"key": "Cookie", "value": MARK}, [("/input/value", "secret_members")],
    )  # fmt: skip


def test_a_records_own_members_are_looked_at_by_their_names_too() -> None:
    found = Findings()
    source = {"node_id": "password=x", "password": "T1", "Bearer abc123": 1, "input": {"ssn": "2", "a": 1}}
    rules = RuleList(1, tuple(BUILT_IN), ("$.ssn",))
    kept = Redactor(rules, bytes(32)).members(source, "/trace_tree/0", found, frozenset({"node_id"}))
    assert kept == {
        "node_id": "password=x", "password": MARK, f"Bearer {MARK}": 1, "input": {"ssn": MARK, "a": 1},
    }  # fmt: skip
    assert [(one.path, one.rule) for one in found.removed] == [
        ("/trace_tree/0/password", "secret_members"),
        (f"/trace_tree/0/Bearer {MARK}", "name"),
        ("/trace_tree/0/input/ssn", "path"),
    ]


def test_what_is_told_of_a_place_is_short_whatever_names_are_sent() -> None:
    value: Any = {"password": "p"}
    for name in ("n" * 100_000, *"abcdefghijkl"):
        value = {f"{name}{'/' * 120}": value}
    ((path, _),) = redact(value)[1]
    assert len(path) <= 1_025
    assert path.startswith("/input/l~1~1")


def test_names_of_a_megabyte_are_not_kept_in_memory() -> None:
    redactor = Redactor(DEFAULT_RULES, bytes(32))
    redactor.value({"n" * 1_000: 1, "password": "p"}, "", Findings())
    info = redactor._known_name.cache_info()  # type: ignore[attr-defined]  # of functools.lru_cache
    assert info.currsize == 1


def test_a_hundred_paths_are_followed_like_one_and_forgotten_places_are_found_again() -> None:
    paths = ("$..a.b", "$..a..c", "$.x[*].a", *(f"$..n{number}..m" for number in range(90)))
    value = {"x": [{"a": {"b": 1, "d": {"c": 2}}}], "n1": {"n2": {"n3": {"m": 4, "k": 5}}}, "c": 6}
    expected = {"x": [{"a": MARK}], "n1": {"n2": {"n3": {"m": MARK, "k": 5}}}, "c": 6}
    redactor = Redactor(RuleList(1, (), paths), bytes(32))
    for _ in range(2):
        assert redactor.value(value, "", Findings()) == expected
    numbers = [*range(90)]
    for start in range(90):  # so many different places that those known first are forgotten
        deep: Any = 1
        for number in numbers[start:] + numbers[:start]:
            deep = {f"n{number}": deep}
        redactor.value(deep, "", Findings())
        assert redactor.value(value, "", Findings()) == expected
    assert len(redactor._paths._known) <= 1_000


def test_card_numbers_are_taken_out_where_the_list_says_so() -> None:
    cards = {"a": "4111 1111 1111 1111", "b": 4111111111111111, "c": "card 5500-0000-0000-0004."}
    assert redact(cards)[0] is cards
    assert redact(cards, ALL)[0] == {"a": MARK, "b": MARK, "c": f"card {MARK}."}
    others = {
        "a": "4111 1111 1111 1112",
        "b": 4111111111111112,
        "c": "0000000000000000",
        "d": "1.4111111111111111",
    }
    assert redact(others, ALL)[0] is others


def test_a_name_that_holds_a_secret_is_taken_out_too() -> None:
    kept, told = redact({"Bearer abc123": 1, "Bearer [REDACTED]": 2, "x": {"a/b~c": {"password": "p"}}})
    assert kept == {
        "Bearer [REDACTED]": 2, "Bearer [REDACTED] (2)": 1, "x": {"a/b~c": {"password": MARK}},
    }  # fmt: skip
    assert told == [("/input/Bearer [REDACTED]", "name"), ("/input/x/a~1b~0c/password", "secret_members")]


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("$.a", {"a": MARK, "b": [{"a": 2, "c d": "x"}, "y"]}),
        ("$..a", {"a": MARK, "b": [{"a": MARK, "c d": "x"}, "y"]}),
        ("$.b[0].a", {"a": 1, "b": [{"a": MARK, "c d": "x"}, "y"]}),
        ("$.b[*].a", {"a": 1, "b": [{"a": MARK, "c d": "x"}, "y"]}),
        ("$.*[1]", {"a": 1, "b": [{"a": 2, "c d": "x"}, MARK]}),
        ("$['b'][0]['c d']", {"a": 1, "b": [{"a": 2, "c d": MARK}, "y"]}),
        ('$.b[0]["c d"]', {"a": 1, "b": [{"a": 2, "c d": MARK}, "y"]}),
        ("$..*", {"a": MARK, "b": MARK}),
        ("$..[1]", {"a": 1, "b": [{"a": 2, "c d": "x"}, MARK]}),
        ("$.b.0", {"a": 1, "b": [{"a": 2, "c d": "x"}, "y"]}),
    ],
)
def test_paths_of_a_list(path: str, kept: Any) -> None:
    value = {"a": 1, "b": [{"a": 2, "c d": "x"}, "y"]}
    if path == "$.b.0":
        with pytest.raises(InvalidMemberError, match="at character 4"):
            RuleList.parse({"patterns": [], "paths": [path]}, 1)
        return
    rules = RuleList.parse({"patterns": [], "paths": [path]}, 1)
    assert redact(value, rules)[0] == kept


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"patterns": ["cards"], "paths": []}, "patterns: there are secret_members"),
        ({"patterns": "secret_members", "paths": []}, "patterns: must be an array"),
        ({"patterns": []}, "paths: must be an array"),
        ({"patterns": [], "paths": ["$"]}, "a path names 1 to 16 members"),
        ({"patterns": [], "paths": ["a.b"]}, "a path begins with \\$"),
        ({"patterns": [], "paths": ["$.a[?(@.b)]"]}, "paths\\[0\\]: at character 4"),
        ({"patterns": [], "paths": ["$...a"]}, "at character 2"),
        ({"patterns": [], "paths": ["$." + "a" * 300]}, "at most 256"),
        ({"patterns": [], "paths": ["$.a"] * 101}, "at most 100"),
        ({"patterns": [], "paths": [], "regex": []}, "regex: is no member"),
        ([], "rules: must be an object"),
    ],
)
def test_a_list_that_is_none_is_refused_by_name(value: Any, says: str) -> None:
    with pytest.raises(InvalidMemberError, match=says):
        RuleList.parse(value, 1)


def test_an_empty_list_takes_nothing_out() -> None:
    value = {"password": "p", "text": "Bearer abc123"}
    assert redact(value, RuleList(3, ()))[0] is value


def test_a_text_of_more_secrets_than_are_looked_at_is_taken_out_whole() -> None:
    text = "password=p " * (MAX_FOUND + 1)
    assert redact(text)[0] == MARK
    few = "password=p " * 5
    kept = redact({"a": text, "b": few})[0]
    assert kept == {"a": MARK, "b": MARK}, "nothing is let through for having come late"


def test_the_note_names_a_hundred_and_counts_all() -> None:
    redactor, found = Redactor(DEFAULT_RULES, bytes(32)), Findings()
    redactor.value([{"password": "p"}] * 150, "/input", found)
    note = redactor.note(found)
    assert (note["rules"], note["patterns"], note["count"]) == (0, 1, 150)
    assert isinstance(note["values"], list)
    assert len(note["values"]) == 100
    assert note["values"][0] == {"path": "/input/0/password", "rule": "secret_members"}


def test_a_seal_tells_values_apart_for_who_has_its_secret_alone() -> None:
    one, two = Redactor(DEFAULT_RULES, b"a" * 32), Redactor(DEFAULT_RULES, b"b" * 32)
    assert one.seal({"b": 1, "a": 2}) == one.seal({"a": 2.0, "b": 1})
    assert one.seal({"a": 1}) != one.seal({"a": 2})
    assert one.seal({"a": 1}) != two.seal({"a": 1})


PIECES = st.sampled_from(
    ["password", "_", "-", "api", "key", "token", '"', "'", "\\", ":", "=", " ", "\n", "\t", "a", "1",
     "Bearer ", "eyJhbGciOi", ".", "://u:p@h", "ghp_", "A1" * 20, "cookie", "authorization", "basic",
     "x-api-key", "-----BEGIN PRIVATE KEY-----", "4111111111111111", "é", "\u2028", "/", "@", ";",
     " is ", "--", "<", ">", "%3D", "curl", "-u ", "x-", "?sig=", "=>", "]", "value=", "x9zzz", "name",
     "AKIA" + "A" * 16]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers(-5, 10**16) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(VALUES)
def test_the_quick_look_overlooks_nothing_and_a_second_walk_finds_nothing(value: Any) -> None:
    redactor, found = Redactor(ALL, bytes(32)), Findings()
    walked = redactor._walk(value, None, "", found)
    if found.removed:
        assert redactor.may_hold(canonical(value)), "the quick look would have let it through"
        assert walked != value
    else:
        assert walked is value
    again = Findings()
    assert redactor._walk(walked, None, "", again) == walked
    assert again.removed == []
