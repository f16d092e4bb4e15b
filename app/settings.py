"""Settings: the only reader of the environment, and the secrets of an installation.

``SETTINGS`` is the one list of what can be set; ``trails serve --help`` and the documentation print it.
A value that does not fit stops the start with a sentence that says what to change.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from app.errors import StartupError
from app.mounted import mounted_secret

MIB = 1024 * 1024

FILE_SUFFIX = "_FILE"
"""A secret may be in a file, as containers and systemd hand them out: ``TRAILS_MASTER_KEY_FILE`` names it."""

MIN_OPERATOR_TOKEN_CHARS = 32
MASTER_KEY_BYTES = 32

_OPERATOR_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{32,400}=*")
_MASTER_KEY = re.compile(r"[0-9a-fA-F]{64}")
_BIND = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_HOST = re.compile(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_ORIGIN = re.compile(
    r"(?:http(?!.*:80$)|https(?!.*:443$))://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?"
)
_LEVELS = ("debug", "info", "warning", "error")
_FORMATS = ("text", "json")
_POOLERS = ("none", "transaction")


class Setting(msgspec.Struct, frozen=True):
    """One thing that can be set: its environment variable, its field, its default as text, what it does."""

    name: str
    field: str
    default: str
    meaning: str
    parse: Callable[[str], Any]
    secret: bool = False


def _text(value: str) -> str:
    return value


def _postgres_url(value: str) -> str:
    if urlsplit(value).scheme not in {"postgresql", "postgres"}:
        raise ValueError("must be a URL such as postgresql://trails_app:secret@host:5432/trails")
    return value


def _bind(value: str) -> tuple[str, int]:
    match = _BIND.fullmatch(value)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError("must be host:port, such as 127.0.0.1:9200 or [::1]:9200")
    return match["six"] or match["host"], int(match["port"])


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if re.fullmatch(r"[0-9]{1,19}", value) is None or not low <= int(value) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return parse


def _seconds(value: str) -> float:
    if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", value) is None or float(value) <= 0:
        raise ValueError("must be a number of seconds above 0, such as 5 or 0.5")
    return float(value)


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return parse


def _flag(value: str) -> bool:
    if value not in {"0", "1", "true", "false"}:
        raise ValueError("must be true or false")
    return value in {"1", "true"}


def _networks(value: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(entry.strip()) for entry in value.split(","))
    except ValueError:
        raise ValueError(
            "must be addresses and networks with commas between them, such as 10.0.0.7,192.168.0.0/24"
        ) from None


def _hosts(value: str) -> tuple[str, ...]:
    names = tuple(entry.strip().lower() for entry in value.split(","))
    if not all(_HOST.fullmatch(name) for name in names):
        raise ValueError(
            "must be names without ports, commas between them, such as trails.example.com,[2001:db8::1]"
        )
    return names


def _origins(value: str) -> tuple[str, ...]:
    origins = tuple(entry.strip() for entry in value.split(","))
    if not all(_ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError(
            "must be whole origins as browsers write them, commas between them: "
            "https://console.example.com,http://localhost:5173, in lower case, without path, wildcard or the "
            "scheme's own port"
        )
    return origins


def _operator_token(value: str) -> str:
    if _OPERATOR_TOKEN.fullmatch(value) is None:
        raise ValueError(
            f"must have at least {MIN_OPERATOR_TOKEN_CHARS} characters of A-Z a-z 0-9 . _ ~ + / -; "
            "make one with: openssl rand -hex 32"
        )
    return value


def _master_key(value: str) -> bytes:
    if _MASTER_KEY.fullmatch(value) is None:
        raise ValueError(
            f"must be {MASTER_KEY_BYTES} bytes as {2 * MASTER_KEY_BYTES} hexadecimal digits; "
            "make one with: openssl rand -hex 32"
        )
    return bytes.fromhex(value)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "TRAILS_DATABASE_URL",
        "database_url",
        "",
        "PostgreSQL 15 or newer to use, as the role trails_app; unset: the embedded server.",
        _postgres_url,
        secret=True,
    ),
    Setting("TRAILS_DATA_DIR", "data_dir", "trails-data", "Folder of keys and the embedded database.", Path),
    Setting("TRAILS_BIND", "bind", "127.0.0.1:9200", "Address and port to listen on.", _bind),
    Setting(
        "TRAILS_OPERATOR_TOKEN",
        "operator_token",
        "",
        "The operator's bearer token; unset: the file keys/operator.token, made on first start.",
        _operator_token,
        secret=True,
    ),
    Setting(
        "TRAILS_ROOT_TOKEN",
        "root_token",
        "",
        "Bearer token that creates and suspends tenants; unset: nobody does over HTTP.",
        _operator_token,
        secret=True,
    ),
    Setting(
        "TRAILS_MASTER_KEY",
        "master_key",
        "",
        "Key that seals the signing keys, 64 hex; unset: the file keys/master.key, made on first start.",
        _master_key,
        secret=True,
    ),
    Setting(
        "TRAILS_MAX_BODY_BYTES",
        "max_body_bytes",
        str(4 * MIB),
        "Largest request body in bytes; a larger one is answered with 413.",
        _integer(1_024, 64 * MIB),
    ),
    Setting(
        "TRAILS_MAX_OTLP_BYTES",
        "max_otlp_bytes",
        str(16 * MIB),
        "The same for spans by OTLP, also after decompression.",
        _integer(1_024, 64 * MIB),
    ),
    Setting(
        "TRAILS_POOL_SIZE",
        "pool_size",
        "8",
        "Database connections of one server process.",
        _integer(1, 200),
    ),
    Setting(
        "TRAILS_POOLER",
        "pooler",
        "none",
        "none, or transaction: the URL leads to a connection pooler such as pgbouncer.",
        _one_of(_POOLERS),
    ),
    Setting(
        "TRAILS_COMMAND_TIMEOUT_SECS",
        "command_timeout_secs",
        "5",
        "Longest wait for one database statement, in seconds; then 503.",
        _seconds,
    ),
    Setting(
        "TRAILS_CHAIN_CACHE",
        "chain_cache",
        "20000",
        "Agents whose state one process keeps in memory, about 5 kB each.",
        _integer(1, 10_000_000),
    ),
    Setting(
        "TRAILS_SNAPSHOT_EVERY",
        "snapshot_every",
        "200",
        "Records between two snapshots, from which a long chain is opened; 0: chains are read whole.",
        _integer(0, 1_000_000),
    ),
    Setting("TRAILS_WORKERS", "workers", "1", "Server processes.", _integer(1, 64)),
    Setting(
        "TRAILS_STOP_DELAY_SECS",
        "stop_delay_secs",
        "1",
        "Seconds that all is still served after SIGTERM, while /readyz says 503 already.",
        _integer(0, 600),
    ),
    Setting(
        "TRAILS_MAX_STREAMS",
        "max_streams",
        "500",
        "Event streams that one server process keeps open; one more is answered with 429.",
        _integer(1, 100_000),
    ),
    Setting(
        "TRAILS_MAX_STREAMS_PER_TENANT",
        "max_streams_per_tenant",
        "50",
        "The same for one tenant.",
        _integer(1, 100_000),
    ),
    Setting(
        "TRAILS_WEBHOOK_ALLOW",
        "webhook_allow",
        "",
        "Networks that webhooks may go to although they are not public, such as 10.1.2.0/24; unset: none.",
        _networks,
    ),
    Setting(
        "TRAILS_WEBHOOK_GIVE_UP_HOURS",
        "webhook_give_up_hours",
        "72",
        "A webhook whose events are not taken for so many hours is switched off.",
        _integer(0, 8_760),
    ),
    Setting(
        "TRAILS_RATE_PER_KEY",
        "rate_per_key",
        "0",
        "Requests a second that one key may send to one server process, then 429; 0: any number.",
        _integer(0, 1_000_000),
    ),
    Setting(
        "TRAILS_FAILURES_PER_PEER",
        "failures_per_peer",
        "10",
        "Invalid tokens a second from one address that one process answers with 401, then 429; 0: all.",
        _integer(0, 1_000_000),
    ),
    Setting(
        "TRAILS_ALLOWED_HOSTS",
        "allowed_hosts",
        "",
        "Names that Host may say, *.example.com for all below; unset: local ones if bound to one, else any.",
        _hosts,
    ),
    Setting(
        "TRAILS_CORS_ORIGINS",
        "cors_origins",
        "",
        "Origins whose pages may call the API, such as https://console.example.com; unset: none.",
        _origins,
    ),
    Setting(
        "TRAILS_TRUSTED_PROXIES",
        "trusted_proxies",
        "",
        "Addresses and networks of proxies whose X-Forwarded-For is believed; unset: nobody's.",
        _networks,
    ),
    Setting(
        "TRAILS_HEADS_FILE",
        "heads_file",
        "",
        "File that keeps the newest head of each chain, best on another machine's disk; unset: none is kept.",
        Path,
    ),
    Setting("TRAILS_HEADS_SECS", "heads_secs", "60", "How often it is written, in seconds.", _seconds),
    Setting(
        "TRAILS_VERIFY_RECORDS_PER_SEC",
        "verify_records_per_sec",
        "100",
        "Records a second that one server process verifies in the background, round by round; 0: none.",
        _integer(0, 1_000_000),
    ),
    Setting("TRAILS_LOG_LEVEL", "log_level", "info", "debug, info, warning or error.", _one_of(_LEVELS)),
    Setting(
        "TRAILS_LOG_FORMAT", "log_format", "text", "text or json: one event is one line.", _one_of(_FORMATS)
    ),
    Setting("TRAILS_LOG_REQUESTS", "log_requests", "true", "Whether each request is a log event.", _flag),
    Setting(
        "TRAILS_METRICS_TOKEN",
        "metrics_token",
        "",
        "Bearer token that /metrics asks of everybody; unset: it answers this machine alone. A reverse proxy "
        "on this machine is this machine, too: set it, or forward no /metrics.",
        _operator_token,
        secret=True,
    ),
)
"""Every setting, in the order that help and documentation show them."""


class Settings(msgspec.Struct, frozen=True):
    """What the environment says, checked. Its repr shows no secret."""

    database_url: str | None = None
    data_dir: Path = Path("trails-data")
    bind_host: str = "127.0.0.1"
    bind_port: int = 9200
    operator_token: str | None = None
    root_token: str | None = None
    master_key: bytes | None = None
    max_body_bytes: int = 4 * MIB
    max_otlp_bytes: int = 16 * MIB
    pool_size: int = 8
    pooler: str = "none"
    command_timeout_secs: float = 5.0
    chain_cache: int = 20_000
    snapshot_every: int = 200
    workers: int = 1
    stop_delay_secs: int = 1
    max_streams: int = 500
    max_streams_per_tenant: int = 50
    webhook_allow: tuple[IPv4Network | IPv6Network, ...] | None = None
    webhook_give_up_hours: int = 72
    rate_per_key: int = 0
    failures_per_peer: int = 10
    allowed_hosts: tuple[str, ...] | None = None
    cors_origins: tuple[str, ...] | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] | None = None
    heads_file: Path | None = None
    heads_secs: float = 60.0
    verify_records_per_sec: int = 100
    log_level: str = "info"
    log_format: str = "text"
    log_requests: bool = True
    metrics_token: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Reads every setting of ``SETTINGS``; an empty variable counts as unset.

        Raises:
            StartupError: a value does not fit; names the variable and what to write instead.
        """
        values = {setting.field: _read(setting, environ) for setting in SETTINGS}
        host, port = values.pop("bind")
        return cls(bind_host=host, bind_port=port, **values)

    def __repr__(self) -> str:
        hidden = {setting.field for setting in SETTINGS if setting.secret}
        shown = (
            f"{name}={'…' if name in hidden and value is not None else repr(value)}"
            for name, value in msgspec.structs.asdict(self).items()
        )
        return f"Settings({', '.join(shown)})"


def _read(setting: Setting, environ: Mapping[str, str]) -> Any:  # noqa: ANN401  each field has its own type
    raw = environ.get(setting.name) or _in_file(setting, environ) or setting.default
    if not raw:
        return None
    try:
        return setting.parse(raw)
    except ValueError as error:
        shown = "" if setting.secret else f" (it is {raw!r})"
        raise StartupError(f"{setting.name} {error}{shown}") from None


def _in_file(setting: Setting, environ: Mapping[str, str]) -> str | None:
    """What the file of a secret holds; None where none is named. The variable itself goes first.

    A file that is named must be there with a secret in it: a key that was made instead would open nothing.
    """
    name = setting.name + FILE_SUFFIX
    named = environ.get(name) if setting.secret else None
    if not named:
        return None
    try:
        return mounted_secret(Path(named))
    except OSError as error:
        raise StartupError(f"{name}: {named}: {error.strerror}") from error
    except ValueError as error:
        raise StartupError(f"{name}: {named} {error}") from None


def settings_of_this_process() -> Settings:
    """The settings of the running process's environment.

    Raises:
        StartupError: a value does not fit.
    """
    return Settings.from_env(os.environ)


def secret_variable(name: str) -> str | None:
    """What an environment variable holds that a setting names; None when it is unset or empty."""
    return os.environ.get(name) or None


# --- secrets ----------------------------------------------------------------------------------------


class Secrets(msgspec.Struct, frozen=True):
    """The secrets of an installation. Its repr shows none. Without a root token nobody is root."""

    operator_token: str
    master_key: bytes
    root_token: str | None = None

    def __repr__(self) -> str:
        return "Secrets(…)"


OPERATOR_TOKEN_FILE = Path("keys/operator.token")
MASTER_KEY_FILE = Path("keys/master.key")


def load_secrets(settings: Settings) -> Secrets:
    """The secrets from the environment, else from the files of the data folder, made when missing.

    Root's token comes from the environment alone.

    Raises:
        StartupError: a file that others may read, that is no plain file, or with a value that does not fit.
    """
    token_file = settings.data_dir / OPERATOR_TOKEN_FILE
    key_file = settings.data_dir / MASTER_KEY_FILE
    return Secrets(
        operator_token=settings.operator_token
        or _checked(token_file, load_or_create_secret(token_file), _operator_token),
        master_key=settings.master_key or _checked(key_file, load_or_create_secret(key_file), _master_key),
        root_token=settings.root_token,
    )


def master_key_at_hand(settings: Settings) -> bytes | None:
    """The installation's master key, for whom it must exist already; None where there is none.

    Raises:
        StartupError: the file is there, but may not be used.
    """
    if settings.master_key is not None:
        return settings.master_key
    key_file = settings.data_dir / MASTER_KEY_FILE
    if not key_file.exists():
        return None
    key: bytes = _checked(key_file, load_or_create_secret(key_file), _master_key)
    return key


def _checked(path: Path, value: str, parse: Callable[[str], Any]) -> Any:  # noqa: ANN401  as parse gives
    try:
        return parse(value)
    except ValueError as error:
        raise StartupError(f"{path}: the value {error}") from None


def load_or_create_secret(path: Path) -> str:
    """Reads the secret in ``path``; when there is none, makes 32 random bytes as 64 hex, mode 0600.

    Processes that start at the same time agree on one secret: the file appears whole or not at all.

    Raises:
        StartupError: the file may be read by group or others, is no plain file, or cannot be made.
    """
    try:
        if not path.exists() and not path.is_symlink():
            _create_secret(path)
        return read_secret(path)
    except OSError as error:
        raise StartupError(
            f"{path}: {error.strerror}; the service must be able to read and write it"
        ) from error


def _create_secret(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        _link_unless_taken(draft, path)
    finally:
        draft.unlink()


def _link_unless_taken(draft: Path, path: Path) -> None:
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return  # another process was first; its secret is the one


def read_secret(path: Path) -> str:
    """The text of a secret's file, at most 4,096 characters, without the space around it.

    Raises:
        StartupError: it may be read by group or others, or is no plain file.
        OSError: it is not there, is a symbolic link, or may not be read.
    """
    # Opening a pipe would wait for whoever writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise StartupError(f"{path} must be a plain file")
        if mode & 0o077:
            raise StartupError(f"{path} may be read by others; run: chmod 600 {path}")
        return file.read(4_096).strip()
