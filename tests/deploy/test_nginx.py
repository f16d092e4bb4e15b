"""The service behind nginx, as ``deploy/nginx/lineage-trails.conf`` sets it up."""

from __future__ import annotations

import gzip
import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml
from pytest_postgresql.executors import NoopExecutor

from app.console.pages import PAGES
from app.http.routes import ROUTES
from app.settings import MIB, Settings
from tests.support.cli import run_trails
from tests.support.nginx import CLIENT, NAME, Nginx, running_nginx
from tests.support.postgres import Server, fresh_database
from tests.support.server import OPERATOR_TOKEN, ServerProcess, StartServer
from tests.support.tools import DEPLOY, output_of, tool

METRICS_TOKEN: Final = "metrics-token-of-the-tests-0123456789abcdef"  # noqa: S105  of a throw-away server
ROOT_TOKEN: Final = "root-token-of-the-tests-0123456789abcdef0123"  # noqa: S105  of a throw-away server
BEHIND: Final = {
    "TRAILS_ALLOWED_HOSTS": NAME,
    "TRAILS_TRUSTED_PROXIES": "127.0.0.1",
    "TRAILS_METRICS_TOKEN": METRICS_TOKEN,
    "TRAILS_ROOT_TOKEN": ROOT_TOKEN,
}
POLICY: Final = {"budget": 1_000, "scar_limit": 10, "tools": {"search": {"cost": 1}}}
EVENTS: Final = "/v1/agents/bot/events"


@pytest.fixture(scope="module")
def service(
    postgres: Server, template: NoopExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """The service as it is told to run behind nginx; all tests of this file share it."""
    folder = tmp_path_factory.mktemp("service")
    with (
        fresh_database(postgres, template.template_dbname) as database,
        ServerProcess(database.app_url, folder, env=BEHIND) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def nginx(service: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """Nginx before it, and an agent."""
    with running_nginx(tmp_path_factory.mktemp("nginx"), _place(service)) as running:
        with running.client(OPERATOR_TOKEN) as client:
            made = client.post("/v1/agents", json={"agent_id": "bot", "policy": POLICY})
            assert made.status_code == 200, made.text
        yield running


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Nginx]:
    """Nginx before a service that does not run."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        with running_nginx(tmp_path / "nginx", f"127.0.0.1:{taken.getsockname()[1]}") as running:
            yield running


def _place(service: ServerProcess) -> str:
    return service.base_url.removeprefix("http://")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _event(size: int) -> bytes:
    """The JSON of an event of exactly so many bytes, with no string that is too long."""
    text = {"type": "filled", "data": [""] * 8}
    missing = size - len(json.dumps(text))
    text["data"] = ["x" * (missing // 8)] * 7 + ["x" * (missing - missing // 8 * 7)]
    return json.dumps(text).encode()


# --- requests -------------------------------------------------------------------------------------------


def test_an_action_is_asked_for_over_one_connection(nginx: Nginx, service: ServerProcess) -> None:
    with nginx.client(OPERATOR_TOKEN) as client:
        for number in range(1, 31):
            asked = client.post("/v1/agents/bot/actions", json={"tool": "search", "input": {"n": number}})
            assert (asked.status_code, asked.json()["action_id"]) == (200, f"act-{number}")
        # What a client says of itself counts for nothing, in none of the forms.
        lies = {"X-Forwarded-For": "203.0.113.9", "X-Real-IP": "203.0.113.9", "Forwarded": "for=203.0.113.9"}
        client.get("/v1/agents/bot", headers={**lies, "X-Forwarded-Host": "evil.example"})
    peers = set(re.findall(r"peer=\"?([0-9.]+)", service.log))
    assert CLIENT in peers
    assert "203.0.113.9" not in service.log
    _until(lambda: nginx.access_log.count("\n") >= 31)
    lines = [json.loads(line) for line in nginx.access_log.splitlines()[-31:]]
    assert {line["peer"] for line in lines} == {CLIENT}
    assert {line["protocol"] for line in lines} == {"HTTP/1.1"}
    told = [line["request_id"] for line in lines]
    _until(lambda: all(request_id in service.log for request_id in told))


def test_http_2_is_spoken_and_old_tls_is_not(nginx: Nginx) -> None:
    assert nginx.certificate is not None
    trust = ["--cacert", str(nginx.certificate.certificate)]
    said = output_of(
        tool("curl"), "--silent", "--http2", *trust, "--header", f"Host: {NAME}",
        "--write-out", "%{http_version} %{http_code}", "--output", "/dev/null", f"{nginx.base_url}/healthz",
    )  # fmt: skip
    assert said == "2 200"
    old = nginx.tls()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with httpx2.Client(verify=old, headers={"Host": NAME}) as client:
        assert client.get(f"{nginx.base_url}/healthz").status_code == 200
    asked = subprocess.run(
        [tool("curl"), "--silent", "--tls-max", "1.1", *trust, f"{nginx.base_url}/healthz"], check=False
    )
    assert asked.returncode != 0


def test_headers_come_once_and_say_what_they_have_to(nginx: Nginx) -> None:
    with nginx.client(OPERATOR_TOKEN) as client:
        answers = [client.get("/v1/agents"), client.get("/v1/agents/nobody"), client.get("/healthz")]
    for answer in answers:
        times = Counter(name.lower() for name, _ in answer.headers.multi_items())
        assert [name for name, count in times.items() if count > 1] == []
        assert answer.headers["strict-transport-security"].startswith("max-age=")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["server"] == "nginx", "without its version"


def test_bodies_of_every_form_arrive_and_the_largest_does_too(nginx: Nginx) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"type": "chunked", '
        yield b'"data": {"n": 1}}'

    with nginx.client(OPERATOR_TOKEN) as client:
        json_type = {"Content-Type": "application/json"}
        chunked = client.post(EVENTS, content=pieces(), headers=json_type)
        assert (chunked.status_code, chunked.json()["type"]) == (200, "chunked")
        largest = client.post(EVENTS, content=_event(Settings().max_body_bytes), headers=json_type)
        assert largest.status_code == 200, largest.text


def test_a_body_that_is_too_large_is_told_as_the_service_tells_it(
    nginx: Nginx, service: ServerProcess
) -> None:
    json_type = {"Content-Type": "application/json"}

    def chunks(size: int) -> Iterator[bytes]:
        for _ in range(0, size, 65_536):
            yield b" " * 65_536

    most, most_spans = Settings().max_body_bytes, Settings().max_otlp_bytes
    with service.client() as direct, nginx.client(OPERATOR_TOKEN) as client:
        own = direct.post(EVENTS, content=_event(most + 1), headers={**json_type, "Host": NAME})
        for path, content in (
            (EVENTS, _event(most + 1)),
            (EVENTS, chunks(most + MIB)),
            ("/v1/traces", b" " * (most_spans + 1)),
        ):
            refused = client.post(path, content=content, headers=json_type)
            assert refused.status_code == 413, refused.text
            assert refused.headers["content-type"] == own.headers["content-type"]
            assert refused.json()["code"] == own.json()["code"] == "payload_too_large"
            assert refused.json().keys() == own.json().keys()
        # Small on the way and large when inflated: the service's own refusal comes through as it is.
        spans = client.post(
            "/v1/traces",
            content=gzip.compress(b" " * (most_spans + 1)),
            headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
        )
        assert spans.status_code == 413
        assert set(spans.json()) == {"code", "message"}, "google.rpc.Status"


def test_neither_queries_nor_tokens_are_in_its_logs(nginx: Nginx, away: Nginx) -> None:
    secret = "a-token-that-was-put-into-a-query"  # noqa: S105  made up
    with nginx.client(OPERATOR_TOKEN) as client:
        client.get(f"/v1/agents?access_token={secret}")
        client.post(f"{EVENTS}?access_token={secret}", content=_event(5 * MIB))
    with away.client(OPERATOR_TOKEN) as client:
        assert client.get(f"/v1/agents?access_token={secret}").status_code == 503
    _until(lambda: '"status":503' in away.access_log and '"status":413' in nginx.access_log)
    for logs in (nginx.logs, away.logs):
        assert '"path":"/v1/agents' in logs
        assert secret not in logs
        assert OPERATOR_TOKEN not in logs


def test_a_service_that_is_away_is_told_as_one_that_cannot_record(away: Nginx) -> None:
    with away.client(OPERATOR_TOKEN) as client:
        refused = client.post(EVENTS, json={"type": "a", "data": None})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "unavailable"


def test_figures_are_for_who_has_the_token_as_the_example_asks_for_them(nginx: Nginx) -> None:
    told = yaml.safe_load((DEPLOY / "prometheus" / "scrape.example.yaml").read_text("utf-8"))
    [job] = told["scrape_configs"]
    assert (job["scheme"], job["authorization"]["type"]) == ("https", "Bearer")
    assert job["static_configs"] == [{"targets": [NAME]}]
    with nginx.client(METRICS_TOKEN) as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert "trails_requests_total" in answer.text
    for other in (OPERATOR_TOKEN, "none"):
        with nginx.client(other) as client:
            assert client.get("/metrics").status_code == 404


def test_figures_are_nobodys_who_comes_through_it_while_there_is_no_token(
    start_server: StartServer, tmp_path: Path
) -> None:
    service = start_server(
        env={"TRAILS_TRUSTED_PROXIES": "127.0.0.1", "TRAILS_ALLOWED_HOSTS": f"{NAME},127.0.0.1"}
    )
    assert httpx2.get(f"{service.base_url}/metrics").status_code == 200
    with running_nginx(tmp_path / "nginx", _place(service)) as nginx, nginx.client("none") as client:
        assert client.get("/metrics").status_code == 404


def test_who_asks_too_often_is_told_to_wait(service: ServerProcess, tmp_path: Path) -> None:
    slower = {"rate=200r/s": "rate=1r/s", "burst=400": "burst=3"}
    with (
        running_nginx(tmp_path / "nginx", _place(service), edits=slower) as nginx,
        nginx.client(OPERATOR_TOKEN) as client,
    ):
        answers = [client.get("/healthz") for _ in range(8)]
    assert answers[0].status_code == 200
    limited = [answer for answer in answers if answer.status_code == 429]
    assert limited, "eight at once are more than the burst"
    assert limited[-1].headers["retry-after"] == "1"
    assert limited[-1].json()["code"] == "too_many_requests"


# --- what is handed on as it comes ----------------------------------------------------------------------


def _locations() -> list[tuple[str, str, str]]:
    """Modifier, pattern and text of each location."""
    text = (DEPLOY / "nginx" / "lineage-trails.conf").read_text("utf-8")
    return re.findall(r"^    location (=|~|)\s*(\S+) \{\n(.*?)^    \}", text, re.MULTILINE | re.DOTALL)


def _handed_on(path: str) -> bool:
    """Whether answers of that path are not collected first."""
    return any(
        modifier == "~" and re.search(pattern, path) and "proxy_buffering off" in text
        for modifier, pattern, text in _locations()
    )


@pytest.mark.parametrize(
    ("path", "handed_on"),
    [
        ("/v1/feed", True),
        ("/v1/approvals/stream", True),
        ("/console/approvals/stream", True),
        ("/v1/exports/7/file", True),
        ("/v1/exports", True),
        ("/v1/agents/bot/export", True),
        ("/v1/export", True),
        ("/agents/bot/export.jsonl", True),
        ("/v1/agents/bot/log", False),
        ("/v1/agents/streamer", False),
        ("/v1/feeds", False),
        ("/v1/agents/bot/exported", False),
    ],
)
def test_streams_and_exports_are_handed_on_and_nothing_else(path: str, *, handed_on: bool) -> None:
    assert _handed_on(path) is handed_on


def test_every_route_that_streams_is_one_of_them() -> None:
    """Told by the routes that there are, so that a new one is not forgotten."""
    paths = {path for handler in (*ROUTES, *PAGES) for path in getattr(handler, "paths", ())}
    streaming = [path for path in paths if re.search(r"(export|stream|feed)s?(\.\w+)?$", path)]
    assert {"/v1/agents/{agent_id:str}/export", "/agents/{agent_id:str}/export.jsonl"} <= set(streaming)
    for path in streaming:
        assert _handed_on(re.sub(r"\{[^}]*\}", "x", path)), path


def test_an_export_comes_through_whole(nginx: Nginx, tmp_path: Path) -> None:
    with nginx.client(OPERATOR_TOKEN) as client:
        assert client.post("/v1/agents", json={"agent_id": "exported", "policy": None}).status_code == 200
        answer = client.get("/v1/agents/exported/export")
        assert answer.status_code == 200, answer.text
        key = client.get("/v1/public-key").json()["public_key"]
    (tmp_path / "exported.jsonl").write_bytes(answer.content)
    verified = run_trails("verify", tmp_path / "exported.jsonl", "--public-key", key)
    assert verified.code == 0, verified.out + verified.err


def test_the_feed_tells_of_a_record_while_it_is_listened_to(nginx: Nginx) -> None:
    listening = {"Accept": "text/event-stream"}
    with (
        nginx.client(OPERATOR_TOKEN) as client,
        nginx.client(OPERATOR_TOKEN) as other,
        client.stream("GET", "/v1/feed", headers=listening) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        next(lines)  # it has begun
        posted = other.post(EVENTS, json={"type": "told-of-by-the-feed", "data": None})
        assert posted.status_code == 200
        assert any("told-of-by-the-feed" in line for line in lines)


class _Telling(BaseHTTPRequestHandler):
    """Sends one event, and the next when it was taken."""

    protocol_version = "HTTP/1.1"
    taken = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in (1, 2):
            self.wfile.write(f"id: {number}\ndata: told\n\n".encode())
            if not self.taken.wait(20):
                return

    def log_message(self, *_: object) -> None:
        """Not on standard error."""


@pytest.mark.parametrize("path", ["/v1/feed", "/v1/approvals/stream"])
def test_an_event_arrives_before_the_next_one_is_sent(path: str, tmp_path: Path) -> None:
    _Telling.taken.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Telling) as upstream:
        thread = threading.Thread(target=upstream.serve_forever)
        thread.start()
        try:
            place = f"127.0.0.1:{upstream.server_address[1]}"
            with (
                running_nginx(tmp_path / "nginx", place) as nginx,
                nginx.client() as client,
                client.stream("GET", path) as answer,
            ):
                lines = (line for line in answer.iter_lines() if line.startswith("id:"))
                assert next(lines) == "id: 1"
                _Telling.taken.set()
                assert next(lines) == "id: 2"
        finally:
            _Telling.taken.set()
            upstream.shutdown()
            thread.join()


def test_the_console_is_signed_in_to(nginx: Nginx) -> None:
    origin = {"Origin": f"https://{NAME}"}
    with nginx.client() as client:
        away = client.get("/")
        assert (away.status_code, away.headers["location"].partition("?")[0]) == (303, "/sign-in")
        entered = client.post("/sign-in", data={"key": OPERATOR_TOKEN, "next": "/"}, headers=origin)
        assert entered.status_code == 303, entered.text
        assert "; Secure" in entered.headers["set-cookie"]
        shown = client.get("/")
        assert shown.status_code == 200
        assert "bot" in shown.text
        times = Counter(name.lower() for name, _ in shown.headers.multi_items())
        assert [name for name, count in times.items() if count > 1] == []


# --- caches ---------------------------------------------------------------------------------------------

CACHING: Final = """
proxy_cache_path cache keys_zone=answers:1m;
server {
    listen {listen};
    access_log off;
    location / {
        proxy_pass http://{upstream};
        proxy_set_header Host trails.example.com;
        proxy_cache answers;
        proxy_cache_key $request_uri;
        proxy_cache_methods GET HEAD;
        proxy_cache_valid any 10m;
        add_header X-Cache $upstream_cache_status always;
        MORE
    }
}
"""
"""A proxy that keeps whatever it may for everybody, by the address alone."""

PATHS: Final = (
    "/v1/agents",
    "/v1/agents/bot",
    "/v1/agents/bot/log",
    "/v1/agents/bot/verify",
    "/v1/agents/bot/actions/pending",
    "/v1/agents/bot/token",
    "/v1/agents/_administration/log",
    "/v1/keys",
    "/v1/sessions",
    "/v1/public-key",
    "/v1/redaction",
    "/v1/nowhere",
    "/metrics",
)


PAGES_OF_A_TENANT: Final = ("/", "/agents/bot", "/agents/bot/log", "/sessions", "/keys", "/administration")


@pytest.fixture(scope="module")
def tokens(nginx: Nginx) -> tuple[str, str]:
    """The tokens of two tenants' operators; each tenant has an agent of the same name."""
    with nginx.client(ROOT_TOKEN) as client:
        made = client.post("/v1/tenants", json={"slug": "acme", "name": "Acme", "operator": "Ada"})
        assert made.status_code == 200, made.text
    other = _token_in(made.json())
    with nginx.client(other) as client:
        assert client.post("/v1/agents", json={"agent_id": "bot", "policy": None}).status_code == 200
    return OPERATOR_TOKEN, other


def _token_in(document: Any) -> str:
    [found] = re.findall(r'"(?:token|key|secret)": ?"([^"]{20,})"', json.dumps(document))
    return str(found)


def test_h17_a_cache_in_front_keeps_nothing_for_somebody_else(
    service: ServerProcess, tokens: tuple[str, str], tmp_path: Path
) -> None:
    ours, theirs = tokens
    site = CACHING.replace("MORE", "")
    with (
        running_nginx(tmp_path / "nginx", _place(service), other=site) as cache,
        httpx2.Client(base_url=cache.base_url) as client,
        httpx2.Client(base_url=service.base_url, headers={"Host": NAME}) as direct,
    ):
        for path in PATHS:
            for token in (ours, ours, theirs, ours, None):
                answer = client.get(path, headers=_bearer(token))
                assert answer.headers["x-cache"] in {"MISS", "BYPASS", "EXPIRED"}, path
                assert answer.status_code == direct.get(path, headers=_bearer(token)).status_code, path
        heads = [client.get("/v1/agents/bot", headers=_bearer(token)).json()["head"] for token in tokens]
        assert heads[0] != heads[1]


def test_h17_a_cache_in_front_keeps_no_page_of_the_console(
    service: ServerProcess, tokens: tuple[str, str], tmp_path: Path
) -> None:
    site = CACHING.replace("MORE", "")
    with running_nginx(tmp_path / "nginx", _place(service), other=site) as cache:
        visits = [httpx2.Client(base_url=cache.base_url) for _ in tokens]
        try:
            for visit, token in zip(visits, tokens, strict=True):
                entered = visit.post("/sign-in", data={"key": token, "next": "/"})
                visit.cookies.update(_cookies(entered))
            for path in PAGES_OF_A_TENANT:
                for visit in (*visits, *visits):
                    answer = visit.get(path)
                    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS"), path
        finally:
            for visit in visits:
                visit.close()


def _cookies(answer: httpx2.Response) -> dict[str, str]:
    """Those of an answer, also the ones that want TLS, which is not there behind the cache."""
    [(name, value)] = re.findall(r"^([\w-]+)=([^;]+);", answer.headers["set-cookie"])
    return {name: value}


def test_h17_the_same_cache_would_keep_what_it_is_not_told_to_forget(
    service: ServerProcess, tokens: tuple[str, str], tmp_path: Path
) -> None:
    """So the test above can fail."""
    site = CACHING.replace("MORE", "proxy_ignore_headers Cache-Control Expires Vary;")
    with (
        running_nginx(tmp_path / "nginx", _place(service), other=site) as cache,
        httpx2.Client(base_url=cache.base_url) as client,
    ):
        answers = [client.get("/v1/agents/bot", headers=_bearer(token)) for token in tokens]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}
