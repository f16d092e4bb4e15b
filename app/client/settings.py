"""Where the service is and who speaks: arguments first, then the environment. Its only reader here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from app.client.errors import ConfigurationError

URL_VARIABLE = "LINEAGE_TRAILS_URL"
TOKEN_VARIABLE = "LINEAGE_TRAILS_TOKEN"  # noqa: S105  the variable's name
AGENT_VARIABLE = "LINEAGE_TRAILS_AGENT"

DEFAULT_URL = "http://127.0.0.1:9200"

_AGENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")
_AGENT_TOKEN = re.compile(r"agt_([0-9a-f]{32})\.([A-Za-z0-9_-]{1,64})\.(?:[0-9]{1,9}\.)?[0-9a-f]{64}")


class Service(msgspec.Struct, frozen=True):
    """One agent of one service, and the token to speak for it. Its repr does not show the token."""

    url: str
    """Scheme, host, port and perhaps a path; no slash at the end."""
    token: str
    agent: str

    @property
    def tenant(self) -> str:
        """The tenant that an agent's token names, 32 hex; empty for other tokens, which do not say it."""
        match = _AGENT_TOKEN.fullmatch(self.token)
        return "" if match is None else match[1]

    def __repr__(self) -> str:
        return f"Service(url={self.url!r}, agent={self.agent!r}, token=…)"


def service(
    url: str | None = None,
    token: str | None = None,
    agent: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Service:
    """The service that is meant. What is None comes from the environment; an empty variable is unset.

    Args:
        url: such as ``https://trails.example``; else ``LINEAGE_TRAILS_URL``, else ``DEFAULT_URL``.
        token: else ``LINEAGE_TRAILS_TOKEN``.
        agent: else ``LINEAGE_TRAILS_AGENT``, else the agent that the token itself names.
        environ: another environment than the process's.

    Raises:
        ConfigurationError: no token, no agent, or a value that cannot be right; says where to set it.
    """
    env = os.environ if environ is None else environ
    bearer = token or env.get(TOKEN_VARIABLE)
    if not bearer:
        raise ConfigurationError(f"no token: give token=…, or set {TOKEN_VARIABLE}")
    if _TOKEN.fullmatch(bearer) is None:
        raise ConfigurationError(f"the token (token=… or {TOKEN_VARIABLE}) has characters that no token has")
    named = _AGENT_TOKEN.fullmatch(bearer)
    name = agent or env.get(AGENT_VARIABLE) or (named[2] if named is not None else None)
    if not name:
        raise ConfigurationError(
            f"no agent: this token names none (only agt_… tokens do); give agent=…, or set {AGENT_VARIABLE}"
        )
    if _AGENT.fullmatch(name) is None:
        raise ConfigurationError(f"agent {name!r}: must be 1 to 64 of A-Z a-z 0-9 _ -")
    return Service(_checked_url(url or env.get(URL_VARIABLE) or DEFAULT_URL), bearer, name)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment:
        raise ConfigurationError(
            f"url=… or {URL_VARIABLE}: {url!r} must be a URL such as https://trails.example:9200"
        )
    if parts.username is not None:
        raise ConfigurationError(f"url=… or {URL_VARIABLE}: credentials do not belong in the URL")
    return url.rstrip("/")


def default_spool(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of journals: ``$XDG_STATE_HOME/lineage-trails/spool``, else below ``~/.local/state``."""
    env = os.environ if environ is None else environ
    state = env.get("XDG_STATE_HOME", "")
    # The specification says: a path that is not absolute is to be ignored.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "lineage-trails" / "spool"
