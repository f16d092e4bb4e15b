"""What the records of an administration chain say: folds over verified records, and nothing else.

``TenantStanding`` is what the service asks at run time: which keys are in force, and whether the tenant is
suspended. It is small, whatever the chain's age. ``AdministrationState`` is all that an audit compares with
the tables; it grows with what was done.

Acts that change nothing of this (an export, a verification) and acts of other versions pass.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from app.chain.record import GENESIS, VerifiedRecord, parse_timestamp
from app.chain.strict import JsonObject
from app.errors import FormatError
from app.guard.fields import FieldError, as_object, flag, integer, optional_text, text
from app.guard.kinds import ADMIN
from app.moment import from_microseconds, to_microseconds
from app.principal import Role
from app.redaction.rules import DEFAULT_RULES, RuleList

KEYS_KEPT: Final = 20_000
"""Keys in force that are kept before those that expired are dropped: twice what a tenant may have."""

COVERS: Final = "covers"
AGENTS: Final = "agents"
"""Member of a genesis record, and its value: records of this chain name every chain that its tenant has."""

T = TypeVar("T")


class ToldKey(msgspec.Struct, frozen=True):
    """What a record tells of an API key; times are aware, UTC."""

    key_id: str
    role: str
    agent_id: str | None
    name: str
    created_at: datetime
    expires_at: datetime | None


class ToldLogin(msgspec.Struct, frozen=True):
    """What a record tells of a SQL login."""

    login: str
    name: str
    created_at: datetime


class Told(msgspec.Struct, frozen=True):
    """Where and when a record tells something.

    A record's time is never before its predecessor's: where the clock was set back it is ``held`` there.
    """

    seq: int
    at: datetime
    held: bool

    def may_be(self, moment: datetime) -> bool:
        """Whether a row that was written with the record may carry this time."""
        return moment == self.at or (self.held and moment < self.at)


class Suspension(msgspec.Struct, frozen=True):
    """The tenant was suspended, or let go on."""

    suspended: bool
    told: Told


class Rotation(msgspec.Struct, frozen=True):
    """A new signing key came after another; keys in hex."""

    old: str
    new: str
    told: Told


class ToldAgent(msgspec.Struct, frozen=True):
    """What a record tells of a chain that was begun with it."""

    agent_id: str
    log_uuid: str
    guarded: bool
    told: Told


class ToldWebhook(msgspec.Struct, frozen=True):
    """What a record tells of a webhook that was set up; ``target`` is what is shown of its address."""

    webhook_id: str
    name: str
    target: str
    kinds: tuple[str, ...] | None
    agents: tuple[str, ...] | None
    told: Told


class TenantStanding(msgspec.Struct, frozen=True):
    """Which keys of a tenant are in force, and whether it is suspended.

    Attributes:
        keys: when each key that was issued and not revoked expires, µs since the epoch; None: never. Some
            that expired are left out.
        names: what those of them are called, case folded, whose name is the actor of what they do.
        epochs: how often the token of an agent was revoked, where it was.
        suspended: as the last record of it says.
        redaction: what is taken out of what is written for it.
        webhooks: those that it has, each with whether it is switched on.
    """

    keys: dict[str, int | None] = {}
    names: dict[str, str] = {}
    epochs: dict[str, int] = {}
    suspended: bool = False
    redaction: RuleList = DEFAULT_RULES
    webhooks: dict[str, bool] = {}

    def names_in_use(self, now_us: int) -> frozenset[str]:
        """What the keys in force are called, case folded, whose name is the actor of what they do."""
        ends = ((name, self.keys[key_id]) for key_id, name in self.names.items())
        return frozenset(name for name, end in ends if end is None or end > now_us)


NO_STANDING: Final = TenantStanding()
"""Before any record: no key is in force."""


def stand(  # noqa: PLR0911  one for each act
    standing: TenantStanding, record: VerifiedRecord
) -> TenantStanding:
    """The standing after one more record of the administration chain.

    Raises:
        FormatError: the act is malformed.
    """
    act = _act(record)
    if act == "key_issued":
        key = _read(_key, record)
        expires = None if key.expires_at is None else to_microseconds(key.expires_at)
        keys = standing.keys
        if len(keys) >= KEYS_KEPT:
            keys = {name: end for name, end in keys.items() if end is None or end > record.timestamp_us}
        own = {} if key.role == Role.AGENT else {key.key_id: key.name.casefold()}
        names = {key_id: name for key_id, name in standing.names.items() if key_id in keys}
        return replace(standing, keys={**keys, key.key_id: expires}, names=names | own)
    if act == "key_revoked":
        keys, names = dict(standing.keys), dict(standing.names)
        key_id = _read(lambda payload: text(payload, "key_id"), record)
        keys.pop(key_id, None)
        names.pop(key_id, None)
        return replace(standing, keys=keys, names=names)
    if act == "agent_token_revoked":
        agent_id, epoch = _read(_epoch, record)
        return replace(standing, epochs={**standing.epochs, agent_id: epoch})
    if act in {"tenant_suspended", "tenant_resumed"}:
        return replace(standing, suspended=act == "tenant_suspended")
    if act in _WEBHOOKS:
        return replace(standing, webhooks=_read(lambda payload: _webhooks(standing, payload, act), record))
    if act == "redaction_set":
        return replace(standing, redaction=_read(_rules, record))
    return standing


class AdministrationState:
    """All that the records of one administration chain say; it takes them in order, from the first on."""

    def __init__(self) -> None:
        self.keys: dict[str, ToldKey] = {}
        self.revoked: dict[str, Told] = {}
        self.suspensions: list[Suspension] = []
        self.logins: dict[str, ToldLogin] = {}
        self.dropped: set[str] = set()
        self.first_key: str | None = None
        """The signing key, in hex, that the chain began with."""

        self.covers_agents = False
        """Whether a record names every chain of the tenant, as the genesis record says."""

        self.rotations: list[Rotation] = []
        self.agents: dict[str, ToldAgent] = {}
        self.webhooks: dict[str, ToldWebhook] = {}
        """All that were set up, those that were ended among them: their rows stay."""

        self.tenant: tuple[str, str] | None = None
        """Slug and name that the tenant was made with; None when it was made without a record."""

        self._last_us = -1

    @property
    def suspended(self) -> bool:
        """Whether the tenant is suspended, as the last record of it says."""
        return bool(self.suspensions) and self.suspensions[-1].suspended

    def add(self, record: VerifiedRecord) -> None:
        """Takes the next record.

        Raises:
            FormatError: the act is malformed.
        """
        told = Told(record.seq, from_microseconds(record.timestamp_us), record.timestamp_us == self._last_us)
        self._last_us = record.timestamp_us
        if record.kind == GENESIS:
            self.first_key = _read(lambda payload: text(payload, "public_key"), record)
            self.covers_agents = record.payload.get(COVERS) == AGENTS
        step = _STEPS.get(_act(record))
        if step is not None:
            _read(lambda payload: step(self, payload, told), record)


def _tenant_created(state: AdministrationState, payload: JsonObject, _told: Told) -> None:
    state.tenant = text(payload, "slug"), text(payload, "name")


def _key_issued(state: AdministrationState, payload: JsonObject, _told: Told) -> None:
    key = _key(payload)
    state.keys.setdefault(key.key_id, key)


def _key_revoked(state: AdministrationState, payload: JsonObject, told: Told) -> None:
    state.revoked.setdefault(text(payload, "key_id"), told)


def _suspended(state: AdministrationState, _payload: JsonObject, told: Told) -> None:
    state.suspensions.append(Suspension(suspended=True, told=told))


def _resumed(state: AdministrationState, _payload: JsonObject, told: Told) -> None:
    state.suspensions.append(Suspension(suspended=False, told=told))


def _rotated(state: AdministrationState, payload: JsonObject, told: Told) -> None:
    state.rotations.append(Rotation(text(payload, "from"), text(payload, "to"), told))


def _login_created(state: AdministrationState, payload: JsonObject, _told: Told) -> None:
    login = ToldLogin(text(payload, "login"), text(payload, "name"), _moment(payload, "created_at"))
    state.logins.setdefault(login.login, login)


def _login_dropped(state: AdministrationState, payload: JsonObject, _told: Told) -> None:
    state.dropped.add(text(payload, "login"))


def _agents_created(state: AdministrationState, payload: JsonObject, told: Told) -> None:
    listed = payload.get("agents")
    if type(listed) is not list:
        raise FieldError("agents", "must be a list")
    for entry in listed:
        body = as_object(entry, "agents")
        agent = ToldAgent(text(body, "agent_id"), text(body, "log_uuid"), flag(body, "guarded"), told)
        state.agents.setdefault(agent.agent_id, agent)


def _webhook_created(state: AdministrationState, payload: JsonObject, told: Told) -> None:
    body = as_object(payload.get("webhook"), "webhook")
    webhook = ToldWebhook(
        text(body, "webhook_id"),
        text(body, "name"),
        text(body, "target"),
        _texts(body, "kinds"),
        _texts(body, "agents"),
        told,
    )
    state.webhooks.setdefault(webhook.webhook_id, webhook)


_STEPS: Final[dict[str | None, Callable[[AdministrationState, JsonObject, Told], None]]] = {
    "tenant_created": _tenant_created,
    "key_issued": _key_issued,
    "key_revoked": _key_revoked,
    "tenant_suspended": _suspended,
    "tenant_resumed": _resumed,
    "signing_key_rotated": _rotated,
    "sql_login_created": _login_created,
    "sql_login_dropped": _login_dropped,
    "agents_created": _agents_created,
    "webhook_created": _webhook_created,
}


def _act(record: VerifiedRecord) -> str | None:
    """Which act a record tells of; None for none."""
    return _read(lambda payload: optional_text(payload, "act"), record) if record.kind == ADMIN else None


_WEBHOOKS: Final = frozenset({"webhook_created", "webhook_deleted", "webhook_disabled", "webhook_enabled"})


def _webhooks(standing: TenantStanding, payload: JsonObject, act: str) -> dict[str, bool]:
    """The webhooks after one of the acts on them."""
    if act == "webhook_created":
        return {**standing.webhooks, text(as_object(payload.get("webhook"), "webhook"), "webhook_id"): True}
    webhook_id = text(payload, "webhook_id")
    others = {known: is_on for known, is_on in standing.webhooks.items() if known != webhook_id}
    if act == "webhook_deleted" or webhook_id not in standing.webhooks:
        return others
    return {**others, webhook_id: act == "webhook_enabled"}


def _rules(payload: JsonObject) -> RuleList:
    rules = as_object(payload.get("rules"), "rules")
    return RuleList.recorded(rules)


def _key(payload: JsonObject) -> ToldKey:
    key = as_object(payload.get("key"), "key")
    return ToldKey(
        key_id=text(key, "key_id"),
        role=text(key, "role"),
        agent_id=optional_text(key, "agent_id"),
        name=text(key, "name"),
        created_at=_moment(key, "created_at"),
        expires_at=None if key.get("expires_at") is None else _moment(key, "expires_at"),
    )


def _texts(source: JsonObject, name: str) -> tuple[str, ...] | None:
    """A list of strings; None when the member is absent or null."""
    value = source.get(name)
    if value is None:
        return None
    if type(value) is not list:
        raise FieldError(name, "must be a list of strings")
    texts = tuple(entry for entry in value if type(entry) is str)
    if len(texts) < len(value):
        raise FieldError(name, "must be a list of strings")
    return texts


def _epoch(payload: JsonObject) -> tuple[str, int]:
    return text(payload, "agent_id"), integer(payload, "epoch", low=1)


def _moment(payload: JsonObject, name: str) -> datetime:
    try:
        return from_microseconds(parse_timestamp(text(payload, name)))
    except FormatError:
        raise FieldError(name, "must be a time in UTC with six decimals") from None


def _read(reader: Callable[[JsonObject], T], record: VerifiedRecord) -> T:
    """What ``reader`` makes of the record's payload; a member that is wrong is a fault of the record."""
    try:
        return reader(record.payload)
    except FieldError as error:
        raise FormatError(f"{record.kind}: {error}", seq=record.seq) from error
