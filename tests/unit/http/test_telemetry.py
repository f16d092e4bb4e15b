"""One event is one line, and no token is in it (cases H19, H21)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import telemetry

SECRET = "operator-token-0123456789-0123456789"  # noqa: S105  of this test
AGENT_TOKEN = "agt_" + "0" * 32 + ".mailer." + "a" * 64
FORGED = "mailer\r\n2026-01-01 info login ok\x85\u2028\x1b[2J\ttab\x00"


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    handlers, level, disabled = root.handlers[:], root.level, access.disabled
    lines = io.StringIO()
    telemetry.configure("debug", request.param, secrets=(SECRET,), stream=lines)
    yield lines
    root.handlers[:], access.disabled = handlers, disabled
    root.setLevel(level)


def log_failure(words: str) -> None:
    try:
        int(words)
    except ValueError:
        logging.getLogger("x").exception("failed")


def test_h21_a_forged_name_makes_no_second_line(log: io.StringIO) -> None:
    logging.getLogger("x").info("agent %s", FORGED)
    logging.getLogger("x").info("agent", extra={"fields": {"agent": FORGED}})
    telemetry.log_request("GET", FORGED, 200, 0.001)
    written = log.getvalue()
    assert len(written.splitlines()) == 3
    for char in ("\r", "\x85", "\u2028", "\x1b", "\x00", "\t"):
        assert char not in written


def test_h21_a_traceback_stays_on_its_line(log: io.StringIO) -> None:
    log_failure(FORGED)
    written = log.getvalue()
    assert len(written.splitlines()) == 1
    assert "ValueError" in written
    assert "test_telemetry" in written


@pytest.mark.parametrize("secret", [SECRET, AGENT_TOKEN, f"Bearer {SECRET}x", "bearer abc.def"])
def test_h19_tokens_are_not_written(log: io.StringIO, secret: str) -> None:
    logging.getLogger("x").info("got %s", secret)
    logging.getLogger("x").info("got", extra={"fields": {"header": secret}})
    log_failure(secret)
    written = log.getvalue()
    assert written.count("[token]") == 3
    for part in (SECRET, "a" * 64, "abc.def"):
        assert part not in written


def test_h19_the_servers_own_access_log_is_off(log: io.StringIO) -> None:
    logging.getLogger("uvicorn.access").info("GET /?token=%s", SECRET)
    assert log.getvalue() == ""


def test_a_request_is_one_event_with_its_id(log: io.StringIO) -> None:
    mark = telemetry.request_id.set("req-0001")
    telemetry.log_request("POST", "/v1/agents/{agent_id}/actions", 200, 0.0123456)
    telemetry.request_id.reset(mark)
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
            "path": "/v1/agents/{agent_id}/actions",
            "status": 200,
            "ms": 12.35,
        }
    else:
        assert line.endswith(
            " info trails.requests request request_id=req-0001 method=POST "
            "path=/v1/agents/{agent_id}/actions status=200 ms=12.35\n"
        )


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
