"""One event is one line, and no token is in it (cases H19, H21)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from uuid import UUID

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from app import telemetry
from app.api_key import Mint

SECRET = "operator-token-0123456789-0123456789"  # noqa: S105  of this test
AGENT_TOKEN = "agt_" + "0" * 32 + ".mailer." + "a" * 64
API_KEY = Mint(b"k" * 32).token(UUID(int=7), "0123456789abcdef", b"s" * 32)
SHOWN = "0123456789abcdef"
FORGED = "mailer\r\n2026-01-01 info login ok\x85\u2028\x1b[2J\ttab\x00\u202e\x7f"
CONTROLS = ("\r", "\x85", "\u2028", "\x1b", "\x00", "\t", "\u202e", "\x7f")


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    handlers, level, disabled = root.handlers[:], root.level, access.disabled
    lines = io.StringIO()
    telemetry.configure("debug", request.param, secrets=(SECRET,), stream=lines)
    yield lines
    root.handlers[:], access.disabled = handlers, disabled
    root.setLevel(level)
    structlog.contextvars.clear_contextvars()


def log_failure(words: str) -> None:
    try:
        int(words)
    except ValueError:
        logging.getLogger("x").exception("failed")


def test_h21_a_forged_name_makes_no_second_line(log: io.StringIO) -> None:
    logging.getLogger("x").info("agent %s", FORGED)
    logging.getLogger("x").info("agent", extra={"fields": {"agent": FORGED}})
    logging.getLogger("x").info("agent", extra={"fields": {"agents": [{"name": FORGED}]}})
    structlog.get_logger("x").info(FORGED, agent=FORGED)
    telemetry.log_request("GET", FORGED, 200, 0.001, {"path": FORGED})
    written = log.getvalue()
    assert len(written.splitlines()) == 5
    for char in CONTROLS:
        assert char not in written


def test_h21_a_value_in_text_is_no_further_field(log: io.StringIO) -> None:
    telemetry.log_request("GET", "/", 404, 0.001, {"path": '/x role=root" tenant=other'})
    if not log.getvalue().startswith("{"):
        assert log.getvalue().endswith(' path="/x role=root\\" tenant=other"\n')


def test_h21_a_traceback_stays_on_its_line(log: io.StringIO) -> None:
    log_failure(FORGED)
    written = log.getvalue()
    assert len(written.splitlines()) == 1
    assert "ValueError" in written
    assert "test_telemetry" in written


@pytest.mark.parametrize(
    "secret",
    [SECRET, AGENT_TOKEN, API_KEY, API_KEY[:60], f"Bearer {SECRET}x", "bearer abc.def", "BEARER\tabc.def"],
)
def test_h19_tokens_are_not_written(log: io.StringIO, secret: str) -> None:
    logging.getLogger("x").info("got %s", secret)
    logging.getLogger("x").info("got", extra={"fields": {"header": secret}})
    logging.getLogger("x").info("got", extra={"fields": {"headers": [{"value": (secret,)}]}})
    structlog.get_logger("x").info("got", header=secret.encode())
    log_failure(secret)
    telemetry.log_request("GET", "/", 404, 0.001, {"path": telemetry.shown_path(f"/x/{secret[:40]}")})
    written = log.getvalue()
    assert written.count("[token]") >= 5
    for part in (SECRET, "a" * 64, "abc.def", API_KEY[37:60]):
        assert part not in written
    for line in written.splitlines():
        assert not line.startswith("{") or json.loads(line)["level"]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1/agent/mailer", "/v1/agent/mailer"),
        ("/x?token=abc", "/x"),
        (f"/hook/{'s' * 41}/x", "/hook/…/x"),
        ("/ab" * 100, ("/ab" * 100)[:200] + "…"),
        ("/" * 100_000, "/" * 200 + "…"),
        (f"/{API_KEY}", "/…"),
    ],
    ids=["plain", "query", "long-piece", "long", "slashes", "key"],
)
def test_h19_a_path_that_no_route_knows_is_told_in_part(path: str, shown: str) -> None:
    assert telemetry.shown_path(path) == shown


def test_h19_the_servers_own_access_log_is_off(log: io.StringIO) -> None:
    logging.getLogger("uvicorn.access").info("GET /?token=%s", SECRET)
    assert log.getvalue() == ""


def test_a_request_is_one_event_with_its_id_and_who_asked(log: io.StringIO) -> None:
    telemetry.begin_request("req-0001")
    who = {"peer": "192.0.2.7", "role": "agent", "tenant": "acme", "key": SHOWN}
    telemetry.log_request("POST", "/v1/agents/{agent_id}/actions", 200, 0.0123456, who)
    line = log.getvalue()
    if line.startswith("{"):
        event = json.loads(line)
        assert event.pop("time")
        assert event == {
            "level": "info",
            "logger": "trails.requests",
            "message": "request",
            "request_id": "req-0001",
            "method": "POST",
            "route": "/v1/agents/{agent_id}/actions",
            "status": 200,
            "ms": 12.35,
            **who,
        }
    else:
        assert line.endswith(
            " info trails.requests request method=POST route=/v1/agents/{agent_id}/actions status=200 "
            f"ms=12.35 peer=192.0.2.7 role=agent tenant=acme key={SHOWN} request_id=req-0001\n"
        )


def test_every_event_of_a_request_carries_its_id(log: io.StringIO) -> None:
    telemetry.begin_request("req-0002")
    logging.getLogger("asyncpg.pool").warning("lost")
    structlog.get_logger("x").info("found", number=7)
    lines = log.getvalue().splitlines()
    assert [line.count("req-0002") for line in lines] == [1, 1]
    assert "number=7" in lines[1] or json.loads(lines[1])["number"] == 7


def test_an_event_below_the_level_is_none(log: io.StringIO) -> None:
    logging.getLogger().setLevel("WARNING")
    structlog.get_logger("x").info("found")
    logging.getLogger("x").info("found")
    assert log.getvalue() == ""


def test_a_log_that_nobody_reads_any_more_harms_no_request(log: io.StringIO) -> None:
    log.close()
    telemetry.log_request("GET", "/healthz", 200, 0.001)


def test_a_failed_request_is_a_warning_and_levels_are_kept(log: io.StringIO) -> None:
    telemetry.log_request("GET", "/readyz", 503, 0.001)
    assert "warning" in log.getvalue()
    logging.getLogger().setLevel("WARNING")
    telemetry.log_request("GET", "/readyz", 200, 0.001)
    assert len(log.getvalue().splitlines()) == 1


@given(st.text())
def test_h21_an_escaped_text_is_one_plain_line(text: str) -> None:
    escaped = telemetry.escape(text)
    assert len(escaped.splitlines()) <= 1
    assert escaped.isascii() or escaped.encode()
