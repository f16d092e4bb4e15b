"""Settings: defaults, words for what does not fit, and the two secret files."""

from __future__ import annotations

import stat
import threading
from ipaddress import ip_network
from pathlib import Path

import msgspec
import pytest

from app.errors import StartupError
from app.settings import (
    MASTER_KEY_FILE,
    OPERATOR_TOKEN_FILE,
    SETTINGS,
    Settings,
    load_or_create_secret,
    load_secrets,
)

TOKEN = "t" * 32
KEY = "ab" * 32


def test_without_an_environment_the_defaults_hold() -> None:
    assert Settings.from_env({}) == Settings()


def test_every_setting_is_read_and_told() -> None:
    environ = {
        "TRAILS_DATABASE_URL": "postgresql://trails_app:pw@db/trails",
        "TRAILS_DATA_DIR": "/var/lib/trails",
        "TRAILS_BIND": "[::1]:9300",
        "TRAILS_OPERATOR_TOKEN": TOKEN,
        "TRAILS_ROOT_TOKEN": TOKEN[::-1],
        "TRAILS_MASTER_KEY": KEY,
        "TRAILS_MAX_BODY_BYTES": "2048",
        "TRAILS_MAX_OTLP_BYTES": "4096",
        "TRAILS_POOL_SIZE": "3",
        "TRAILS_POOLER": "transaction",
        "TRAILS_COMMAND_TIMEOUT_SECS": "0.5",
        "TRAILS_CHAIN_CACHE": "10",
        "TRAILS_SNAPSHOT_EVERY": "50",
        "TRAILS_WORKERS": "2",
        "TRAILS_STOP_DELAY_SECS": "0",
        "TRAILS_WEBHOOK_ALLOW": "10.1.2.0/24",
        "TRAILS_WEBHOOK_GIVE_UP_HOURS": "5",
        "TRAILS_MAX_STREAMS": "7",
        "TRAILS_MAX_STREAMS_PER_TENANT": "3",
        "TRAILS_RATE_PER_KEY": "200",
        "TRAILS_FAILURES_PER_PEER": "0",
        "TRAILS_ALLOWED_HOSTS": "Trails.example.com, *.trails.example.com,[::1]",
        "TRAILS_CORS_ORIGINS": "https://console.example.com, http://localhost:5173,http://[::1]:8080",
        "TRAILS_TRUSTED_PROXIES": "10.0.0.7, 2001:db8::/32",
        "TRAILS_HEADS_FILE": "/mnt/heads/trails",
        "TRAILS_HEADS_SECS": "5",
        "TRAILS_VERIFY_RECORDS_PER_SEC": "0",
        "TRAILS_LOG_LEVEL": "debug",
        "TRAILS_LOG_FORMAT": "json",
        "TRAILS_LOG_REQUESTS": "false",
        "TRAILS_METRICS_TOKEN": TOKEN[::-1],
    }
    assert environ.keys() == {setting.name for setting in SETTINGS}
    assert Settings.from_env(environ) == Settings(
        database_url="postgresql://trails_app:pw@db/trails",
        data_dir=Path("/var/lib/trails"),
        bind_host="::1",
        bind_port=9300,
        operator_token=TOKEN,
        root_token=TOKEN[::-1],
        master_key=bytes.fromhex(KEY),
        max_body_bytes=2048,
        max_otlp_bytes=4096,
        pool_size=3,
        pooler="transaction",
        command_timeout_secs=0.5,
        chain_cache=10,
        snapshot_every=50,
        workers=2,
        stop_delay_secs=0,
        webhook_allow=(ip_network("10.1.2.0/24"),),
        webhook_give_up_hours=5,
        max_streams=7,
        max_streams_per_tenant=3,
        rate_per_key=200,
        failures_per_peer=0,
        allowed_hosts=("trails.example.com", "*.trails.example.com", "[::1]"),
        cors_origins=("https://console.example.com", "http://localhost:5173", "http://[::1]:8080"),
        trusted_proxies=(ip_network("10.0.0.7/32"), ip_network("2001:db8::/32")),
        heads_file=Path("/mnt/heads/trails"),
        heads_secs=5.0,
        verify_records_per_sec=0,
        log_level="debug",
        log_format="json",
        log_requests=False,
        metrics_token=TOKEN[::-1],
    )


def test_every_setting_has_a_sentence_and_a_field() -> None:
    fields = {field.name for field in msgspec.structs.fields(Settings)} - {"bind_host", "bind_port"} | {
        "bind"
    }
    assert {setting.field for setting in SETTINGS} == fields
    for setting in SETTINGS:
        assert setting.meaning.endswith(".")
        assert setting.name.startswith("TRAILS_")


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.from_env(dict.fromkeys((setting.name for setting in SETTINGS), "")) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRAILS_DATABASE_URL", "mysql://x"),
        ("TRAILS_DATABASE_URL", "sqlite"),
        ("TRAILS_BIND", "9200"),
        ("TRAILS_BIND", "127.0.0.1:65536"),
        ("TRAILS_BIND", "127.0.0.1:"),
        ("TRAILS_BIND", "::1:9200"),
        ("TRAILS_OPERATOR_TOKEN", "t" * 31),
        ("TRAILS_OPERATOR_TOKEN", "t" * 40 + "é"),
        ("TRAILS_OPERATOR_TOKEN", "t" * 40 + " "),
        ("TRAILS_MASTER_KEY", "ab" * 31),
        ("TRAILS_MASTER_KEY", "xy" * 32),
        ("TRAILS_MAX_BODY_BYTES", "0"),
        ("TRAILS_MAX_BODY_BYTES", "4MiB"),
        ("TRAILS_POOL_SIZE", "0"),
        ("TRAILS_POOL_SIZE", "-1"),
        ("TRAILS_COMMAND_TIMEOUT_SECS", "0"),
        ("TRAILS_COMMAND_TIMEOUT_SECS", "nan"),
        ("TRAILS_CHAIN_CACHE", "x"),
        ("TRAILS_WORKERS", "65"),
        ("TRAILS_RATE_PER_KEY", "-1"),
        ("TRAILS_FAILURES_PER_PEER", "0.5"),
        ("TRAILS_ALLOWED_HOSTS", "trails.example.com:443"),
        ("TRAILS_ALLOWED_HOSTS", "https://trails.example.com"),
        ("TRAILS_ALLOWED_HOSTS", "trails.example.com,"),
        ("TRAILS_ALLOWED_HOSTS", "*example.com"),
        ("TRAILS_ALLOWED_HOSTS", "a.*.example.com"),
        ("TRAILS_ALLOWED_HOSTS", "::1"),
        ("TRAILS_CORS_ORIGINS", "*"),
        ("TRAILS_CORS_ORIGINS", "null"),
        ("TRAILS_CORS_ORIGINS", "https://*.example.com"),
        ("TRAILS_CORS_ORIGINS", "https://console.example.com/"),
        ("TRAILS_CORS_ORIGINS", "https://console.example.com:443"),
        ("TRAILS_CORS_ORIGINS", "http://console.example.com:80"),
        ("TRAILS_CORS_ORIGINS", "https://Console.example.com"),
        ("TRAILS_CORS_ORIGINS", "https://user@console.example.com"),
        ("TRAILS_CORS_ORIGINS", "console.example.com"),
        ("TRAILS_CORS_ORIGINS", "file://console"),
        ("TRAILS_CORS_ORIGINS", "https://console.example.com,"),
        ("TRAILS_TRUSTED_PROXIES", "proxy.example"),
        ("TRAILS_TRUSTED_PROXIES", "10.0.0.7/8"),
        ("TRAILS_TRUSTED_PROXIES", "10.0.0.7,"),
        ("TRAILS_VERIFY_RECORDS_PER_SEC", "-1"),
        ("TRAILS_VERIFY_RECORDS_PER_SEC", "0.5"),
        ("TRAILS_LOG_LEVEL", "INFO!"),
        ("TRAILS_LOG_FORMAT", "xml"),
        ("TRAILS_LOG_REQUESTS", "maybe"),
    ],
)
def test_a_value_that_does_not_fit_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(StartupError) as caught:
        Settings.from_env({name: value})
    assert str(caught.value).startswith(f"{name} must ")
    secret = next(setting.secret for setting in SETTINGS if setting.name == name)
    assert (value in str(caught.value)) is not secret


def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    settings = Settings.from_env(
        {
            "TRAILS_OPERATOR_TOKEN": TOKEN,
            "TRAILS_MASTER_KEY": KEY,
            "TRAILS_DATABASE_URL": "postgresql://u:pw@h/d",
            "TRAILS_DATA_DIR": str(tmp_path),
        }
    )
    for shown in (repr(settings), str(settings), repr(load_secrets(settings)), str(load_secrets(settings))):
        assert TOKEN not in shown
        assert "pw" not in shown
        assert KEY not in shown
        assert repr(bytes.fromhex(KEY)) not in shown


def test_secrets_are_made_once_and_only_for_their_owner(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    first = load_secrets(settings)
    assert load_secrets(settings) == first
    assert len(first.operator_token) >= 32
    assert len(first.master_key) == 32
    for file in (OPERATOR_TOKEN_FILE, MASTER_KEY_FILE):
        path = settings.data_dir / file
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in (tmp_path / "data/keys").iterdir()) == [
        "master.key",
        "operator.token",
    ]


def test_the_environment_comes_before_the_files(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, operator_token=TOKEN, master_key=bytes.fromhex(KEY))
    secrets = load_secrets(settings)
    assert (secrets.operator_token, secrets.master_key) == (TOKEN, bytes.fromhex(KEY))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "operator.token"
    load_or_create_secret(path)
    path.chmod(mode)
    with pytest.raises(StartupError, match="chmod 600"):
        load_or_create_secret(path)


def test_a_secret_behind_a_link_or_in_a_folder_is_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    load_or_create_secret(real)
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("link", "dangling", "folder"):
        with pytest.raises(StartupError):
            load_or_create_secret(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("file", "value"), [(OPERATOR_TOKEN_FILE, "short"), (MASTER_KEY_FILE, "ab" * 31), (MASTER_KEY_FILE, "")]
)
def test_a_secret_file_with_a_value_that_does_not_fit_is_refused(
    tmp_path: Path, file: Path, value: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(value)
    path.chmod(0o600)
    with pytest.raises(StartupError) as caught:
        load_secrets(Settings(data_dir=tmp_path))
    assert str(caught.value).startswith(f"{path}: ")
    assert path.read_text() == value


def test_processes_that_start_at_once_agree_on_one_secret(tmp_path: Path) -> None:
    path, found = tmp_path / "keys" / "master.key", list[str]()
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait()
        found.append(load_or_create_secret(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {path.read_text().strip()}
    assert list(path.parent.iterdir()) == [path]


# --- secrets in files that NAME_FILE names --------------------------------------------------------------


def mounted(path: Path, value: str, mode: int = 0o440) -> str:
    path.write_text(value)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
def test_a_secret_may_be_in_a_file(tmp_path: Path, mode: int) -> None:
    named = {
        "TRAILS_DATABASE_URL_FILE": mounted(tmp_path / "url", "postgresql://trails_app:pw@db/trails\n", mode),
        "TRAILS_OPERATOR_TOKEN_FILE": mounted(tmp_path / "operator", f"{TOKEN}\n", mode),
        "TRAILS_ROOT_TOKEN_FILE": mounted(tmp_path / "root", TOKEN[::-1], mode),
        "TRAILS_MASTER_KEY_FILE": mounted(tmp_path / "key", f"{KEY}\n", mode),
        "TRAILS_METRICS_TOKEN_FILE": mounted(tmp_path / "metrics", TOKEN, mode),
    }
    assert named.keys() == {setting.name + "_FILE" for setting in SETTINGS if setting.secret}
    assert Settings.from_env(named) == Settings(
        database_url="postgresql://trails_app:pw@db/trails",
        operator_token=TOKEN,
        root_token=TOKEN[::-1],
        master_key=bytes.fromhex(KEY),
        metrics_token=TOKEN,
    )


def test_a_mounted_secret_may_be_behind_links_as_kubernetes_has_them(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    mounted(tmp_path / "..2026" / "master_key", KEY)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "master_key").symlink_to("..data/master_key")
    found = Settings.from_env({"TRAILS_MASTER_KEY_FILE": str(tmp_path / "master_key")})
    assert found.master_key == bytes.fromhex(KEY)


def test_the_variable_goes_before_its_file(tmp_path: Path) -> None:
    named = {"TRAILS_OPERATOR_TOKEN_FILE": str(tmp_path / "nowhere"), "TRAILS_OPERATOR_TOKEN": TOKEN}
    assert Settings.from_env(named).operator_token == TOKEN


def test_only_secrets_are_read_from_files(tmp_path: Path) -> None:
    assert Settings.from_env({"TRAILS_BIND_FILE": mounted(tmp_path / "bind", "0.0.0.0:80")}) == Settings()


@pytest.mark.parametrize(
    ("value", "mode", "said"),
    [
        (KEY, 0o444, "chmod o="),
        (KEY, 0o646, "chmod o="),
        ("", 0o400, "must hold the secret"),
        (" \n", 0o400, "must hold the secret"),
        ("ab" * 4_000, 0o400, "must hold the secret"),
        ("é" * 32, 0o400, "must hold the secret"),
        ("ab" * 31, 0o400, "64 hexadecimal digits"),
    ],
)
def test_a_mounted_secret_that_cannot_be_used_is_refused(
    tmp_path: Path, value: str, mode: int, said: str
) -> None:
    path = mounted(tmp_path / "key", value, mode)
    with pytest.raises(StartupError, match=said) as caught:
        Settings.from_env({"TRAILS_MASTER_KEY_FILE": path})
    assert str(caught.value).startswith("TRAILS_MASTER_KEY")
    assert not value.strip() or value.strip() not in str(caught.value)


def test_a_named_file_that_is_not_there_makes_no_key(tmp_path: Path) -> None:
    """Else a mount that is missing would begin a new installation."""
    for name in ("nowhere", "."):
        with pytest.raises(StartupError, match="TRAILS_MASTER_KEY_FILE"):
            Settings.from_env({"TRAILS_MASTER_KEY_FILE": str(tmp_path / name)})
    assert list(tmp_path.iterdir()) == []
