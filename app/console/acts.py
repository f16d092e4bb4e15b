"""Administrative acts in words: what the records of ``_administration`` say, a sentence each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.chain.strict import JsonObject, JsonValue
from app.text import printable

_MOST_NAMED: Final = 3
_MOST_CHARS: Final = 200


def sentence(payload: JsonObject) -> str:
    """What an act was, for a person; one that this version has no words for is called by its name."""
    act = payload.get("act")
    words = _SENTENCES.get(act) if isinstance(act, str) else None
    if words is None:
        return f"{_said(act) or 'act without a name'}{_rest(payload)}"
    return words(payload)


def known_acts() -> list[str]:
    """Acts that there are words for, by name."""
    return sorted(_SENTENCES)


def _said(value: JsonValue) -> str:
    return "" if value is None else printable(str(value)[:_MOST_CHARS])


def _rest(payload: JsonObject) -> str:
    named = {name: payload[name] for name in ("agent_id", "name", "login", "reason") if payload.get(name)}
    return "" if not named else ": " + ", ".join(_said(value) for value in named.values())


def _because(payload: JsonObject) -> str:
    return f": {_said(payload['reason'])}" if payload.get("reason") else ""


def _key_issued(payload: JsonObject) -> str:
    key = payload.get("key")
    told: JsonObject = key if isinstance(key, dict) else {}
    whose = f" for agent {_said(told['agent_id'])}" if told.get("agent_id") else ""
    until = f", until {_said(told['expires_at'])}" if told.get("expires_at") else ""
    said = {name: _said(told.get(name)) for name in ("role", "name", "key_id")}
    return f"issued the {said['role']} key {said['name']} ({said['key_id']}){whose}{until}"


def _key_revoked(payload: JsonObject) -> str:
    said = {name: _said(payload.get(name)) for name in ("role", "name", "key_id")}
    return f"revoked the {said['role']} key {said['name']} ({said['key_id']})"


def _agents_created(payload: JsonObject) -> str:
    listed = payload.get("agents")
    agents = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    named = [
        _said(one.get("agent_id")) + ("" if one.get("guarded") else " (observed)")
        for one in agents[:_MOST_NAMED]
    ]
    more = f" and {len(agents) - _MOST_NAMED} more" if len(agents) > _MOST_NAMED else ""
    return f"created {'agent' if len(agents) == 1 else f'{len(agents)} agents:'} {', '.join(named)}{more}"


def _verified(payload: JsonObject) -> str:
    found = "intact" if payload.get("intact") is True else "NOT intact"
    return f"verified {_said(payload.get('agent_id'))}: {_said(payload.get('length'))} records, {found}"


def _viewed(payload: JsonObject) -> str:
    session = payload.get("session") or payload.get("session_id")  # as earlier versions called it
    if session:
        return f"looked at session {_said(session)} in the console"
    return f"looked at records of {_said(payload.get('agent_id'))} in the console"


def _export(payload: JsonObject) -> str:
    about = f" of {_said(payload['agent_id'])}" if payload.get("agent_id") else ""
    form = f" as {_said(payload['format'])}" if payload.get("format") else ""
    return f"{about}{form}"


def _exported(payload: JsonObject) -> str:
    rows = payload.get("rows")
    return f"exported{_export(payload)}" + ("" if rows is None else f": {_said(rows)} rows")


def _export_broken(payload: JsonObject) -> str:
    return f"an export{_export(payload)} broke off after {_said(payload.get('rows'))} rows"


def _webhook_created(payload: JsonObject) -> str:
    told = payload.get("webhook")
    hook: JsonObject = told if isinstance(told, dict) else {}
    return f"made the webhook {_said(hook.get('webhook_id'))} to {_said(hook.get('target'))}"


def _webhook(done: str, payload: JsonObject) -> str:
    return f"{done} the webhook {_said(payload.get('webhook_id'))}{_because(payload)}"


_SENTENCES: Final[dict[str, Callable[[JsonObject], str]]] = {
    "agent_token_revoked": lambda payload: (
        f"revoked the token of agent {_said(payload.get('agent_id'))}{_because(payload)}"
    ),
    "agents_created": _agents_created,
    "export_begun": lambda payload: f"began an export{_export(payload)}",
    "export_broken": _export_broken,
    "exported": _exported,
    "heads_accepted": lambda payload: f"accepted chains behind their kept heads{_because(payload)}",
    "key_issued": _key_issued,
    "key_revoked": _key_revoked,
    "redaction_set": lambda _payload: "changed what is redacted",
    "signed_in": lambda _payload: "signed in to the console",
    "signed_out": lambda _payload: "signed out of the console",
    "signing_key_rotated": lambda payload: f"rotated the signing key to {_said(payload.get('to'))[:16]}…",
    "sql_login_created": lambda payload: f"made the SQL login {_said(payload.get('login'))}",
    "sql_login_dropped": lambda payload: f"dropped the SQL login {_said(payload.get('login'))}",
    "tenant_created": lambda payload: f"made the tenant {_said(payload.get('slug'))}",
    "tenant_resumed": lambda payload: f"let the tenant go on{_because(payload)}",
    "tenant_suspended": lambda payload: f"suspended the tenant{_because(payload)}",
    "verified": _verified,
    "viewed": _viewed,
    "webhook_created": _webhook_created,
    "webhook_deleted": lambda payload: f"took the webhook {_said(payload.get('webhook_id'))} away",
    "webhook_disabled": lambda payload: _webhook("switched off", payload),
    "webhook_enabled": lambda payload: _webhook("switched on", payload),
}
