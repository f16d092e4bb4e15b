"""Where the service is and who speaks: arguments first, then the environment, then what is usual."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.client import LineageTracker
from app.client.errors import ConfigurationError
from app.client.settings import DEFAULT_URL, Service, default_spool, service

AGENT_TOKEN = f"agt_{'5' * 32}.bot-1.{'a' * 64}"
ENV = {
    "LINEAGE_TRAILS_URL": "https://trails.example/",
    "LINEAGE_TRAILS_TOKEN": "from-the-environment",
    "LINEAGE_TRAILS_AGENT": "env-agent",
}


def test_arguments_go_before_the_environment() -> None:
    assert service("http://[::1]:9", "t", "a", ENV) == Service("http://[::1]:9", "t", "a")
    assert service(environ=ENV) == Service("https://trails.example", "from-the-environment", "env-agent")
    assert service(None, "t", "a", {}).url == DEFAULT_URL
    assert service(environ={**ENV, "LINEAGE_TRAILS_URL": ""}).url == DEFAULT_URL


def test_an_agents_token_names_its_agent_and_tenant() -> None:
    found = service(token=AGENT_TOKEN, environ={})
    assert (found.agent, found.tenant) == ("bot-1", "5" * 32)
    assert service(None, "t", "a", {}).tenant == ""


@pytest.mark.parametrize(
    ("url", "token", "agent", "says"),
    [
        (None, None, "a", "LINEAGE_TRAILS_TOKEN"),
        (None, "t", None, "LINEAGE_TRAILS_AGENT"),
        (None, "t", "a/b", "agent 'a/b'"),
        (None, "t", "a" * 65, "agent"),
        (None, "two words", "a", "characters that no token has"),
        ("trails.example", "t", "a", "must be a URL"),
        ("ftp://trails.example", "t", "a", "must be a URL"),
        ("http://", "t", "a", "must be a URL"),
        ("http://x:99999", "t", "a", "must be a URL"),
        ("http://x/?a=b", "t", "a", "must be a URL"),
        ("http://user:secret@x", "t", "a", "credentials"),
    ],
)
def test_what_cannot_be_right_says_where_to_set_it(
    url: str | None, token: str | None, agent: str | None, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        service(url, token, agent, {})
    assert "two words" not in str(caught.value), "a token is never shown"
    assert "user:secret" not in str(caught.value)


def test_the_token_is_not_shown() -> None:
    assert "secret-token" not in repr(service(None, "secret-token", "a", {}))


def test_a_tracker_takes_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with LineageTracker() as tracker:
        assert tracker.outbox.service == service(environ=ENV)
        assert tracker.agent == "env-agent"
        assert tracker.outbox.folder == tmp_path / "lineage-trails" / "spool"


def test_the_spool_is_below_the_state_folder() -> None:
    usual = Path.home() / ".local" / "state" / "lineage-trails" / "spool"
    assert default_spool({}) == usual
    assert default_spool({"XDG_STATE_HOME": "relative"}) == usual
    assert default_spool({"XDG_STATE_HOME": "/s"}) == Path("/s/lineage-trails/spool")
