"""nginx in front of a service, set up by ``deploy/nginx/lineage-trails.conf``, where the machine has it."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import httpx2
import msgspec

from tests.support.certificate import Certificate, make_certificate
from tests.support.tools import DEPLOY, tool

NAME: Final = "trails.example.com"
"""What the file calls the service."""

CLIENT: Final = "127.0.0.5"
"""The address that clients come from, so that it is told from the proxy's own."""

_FILE: Final = DEPLOY / "nginx" / "lineage-trails.conf"
_START_SECS: Final = 20.0

_MAIN: Final = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/main.log notice;
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {site}
}}
"""


class Nginx(msgspec.Struct, frozen=True):
    """A running nginx; ``base_url`` is where it listens."""

    base_url: str
    folder: Path
    certificate: Certificate | None

    def client(self, token: str | None = None, **options: object) -> httpx2.Client:
        """A client from ``CLIENT`` that trusts the certificate and calls the service by its name."""
        headers = {"Host": NAME} | ({"Authorization": f"Bearer {token}"} if token else {})
        transport = httpx2.HTTPTransport(verify=self.tls(), local_address=CLIENT)
        return httpx2.Client(
            base_url=self.base_url, headers=headers, transport=transport, timeout=30, **options
        )  # type: ignore[arg-type]  # whatever it takes

    def tls(self) -> ssl.SSLContext:
        """What trusts its certificate."""
        context = ssl.create_default_context()
        if self.certificate is not None:
            context.load_verify_locations(self.certificate.certificate)
        return context

    @property
    def access_log(self) -> str:
        """The lines of requests, as soon as they are written: a request that was answered has one."""
        return (self.folder / "access.log").read_text("utf-8")

    @property
    def logs(self) -> str:
        """All that it has written anywhere."""
        return "".join(path.read_text("utf-8") for path in self.folder.glob("*.log"))


def site(folder: Path, upstream: str, listen: str, edits: Mapping[str, str]) -> str:
    """The file with this machine's addresses, certificate and folders in it."""
    text = _FILE.read_text("utf-8")
    certificate = Certificate(folder / "server.crt", folder / "server.key")
    for theirs, ours in {
        "    listen [::]:443 ssl http2;\n": "",
        "listen 443 ssl http2;": f"listen {listen} ssl http2;",
        "server 127.0.0.1:9200;": f"server {upstream};",
        "/etc/nginx/tls/trails.example.com.crt": str(certificate.certificate),
        "/etc/nginx/tls/trails.example.com.key": str(certificate.key),
        "/var/log/nginx/lineage-trails.log": str(folder / "access.log"),
        "/var/log/nginx/lineage-trails.error.log": str(folder / "error.log"),
        **edits,
    }.items():
        assert text.count(theirs) == 1, theirs
        text = text.replace(theirs, ours)
    return text


@contextmanager
def running_nginx(
    folder: Path,
    upstream: str,
    *,
    edits: Mapping[str, str] = MappingProxyType({}),
    other: str | None = None,
) -> Iterator[Nginx]:
    """Nginx in front of ``upstream`` (``host:port``).

    Args:
        folder: an empty one, for its files.
        upstream: where the service is.
        edits: what differs from the file besides.
        other: another site altogether, without TLS; ``{listen}`` and ``{upstream}`` in it are filled in.
    """
    binary = tool("nginx")
    folder.mkdir(exist_ok=True)
    listen = f"127.0.0.1:{_free_port()}"
    certificate = make_certificate(folder, NAME) if other is None else None
    if other is None:
        content = site(folder, upstream, listen, edits)
    else:
        content = other.replace("{listen}", listen).replace("{upstream}", upstream)
    # As root it would become a user that may not read the folders of tests.
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = folder / "nginx.conf"
    configuration.write_text(_MAIN.format(user=user, folder=folder, site=content.replace("\n", "\n    ")))
    process = subprocess.Popen(
        [binary, "-p", str(folder), "-e", str(folder / "main.log"), "-c", str(configuration)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(process, listen, folder)
        scheme = "http" if certificate is None else "https"
        yield Nginx(f"{scheme}://{listen}", folder, certificate)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_START_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(process: subprocess.Popen[bytes], listen: str, folder: Path) -> None:
    host, _, port = listen.partition(":")
    deadline = time.monotonic() + _START_SECS
    while True:
        assert process.poll() is None, (folder / "main.log").read_text("utf-8")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "nginx does not start"
            time.sleep(0.02)
        else:
            return
