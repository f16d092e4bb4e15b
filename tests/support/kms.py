"""A keeper of a signing key in a process of its own, and the package that a third party would write for it.

The process answers lines on a Unix socket. Its mode is a word in a file: ``sign``, ``wrong`` (another key's
signature), ``short`` (no signature at all) or ``hang`` (no answer).
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

_SERVER = """
import pathlib, socketserver, sys, time
from nacl.signing import SigningKey

folder = pathlib.Path(sys.argv[1])
key, other = SigningKey(bytes.fromhex(sys.argv[2])), SigningKey(bytes(range(32)))


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        word, _, message = self.rfile.readline().decode().strip().partition(" ")
        mode = (folder / "mode").read_text()
        if word == "public":
            self.wfile.write(bytes(key.verify_key).hex().encode())
            return
        with (folder / "asked").open("a") as asked:
            asked.write(message + "\\n")
        if mode == "hang":
            time.sleep(3600)
        signer = other if mode == "wrong" else key
        signature = signer.sign(bytes.fromhex(message)).signature.hex()
        self.wfile.write((signature[:-2] if mode == "short" else signature).encode())


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


Server(str(folder / "socket"), Handler).serve_forever()
"""

_PACKAGE = """
import socket
from app.chain.keys import PublicKey


class Kms:
    remote = True

    def __init__(self, path):
        self._path = path
        self.public = PublicKey.load(self._ask("public"))

    def sign(self, message):
        return bytes.fromhex(self._ask("sign " + message.hex()))

    def _ask(self, line):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            connection.sendall(line.encode() + b"\\n")
            return connection.makefile().read()


def open_signer(uri):
    return Kms(uri.removeprefix("testkms:"))
"""


def install(site: Path, module: str = "acme_kms") -> None:
    """Puts the package where ``importlib.metadata`` finds it, as an installer does."""
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lineage_trails.signers]\ntestkms = {module}:open_signer\n")
    (site / f"{module}.py").write_text(_PACKAGE)


class Kms:
    """The running process; ``uri`` names it."""

    def __init__(self, folder: Path, secret: bytes) -> None:
        self._folder = folder
        self.uri = f"testkms:{folder}/socket"
        self.mode("sign")
        (folder / "asked").touch()
        self._process = subprocess.Popen([sys.executable, "-c", _SERVER, str(folder), secret.hex()])
        until = time.monotonic() + 20
        while not (folder / "socket").exists():
            assert self._process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)

    def mode(self, word: str) -> None:
        """What it does from now on."""
        (self._folder / "mode").write_text(word)

    def asked(self) -> int:
        """How many signatures it was asked for."""
        return len((self._folder / "asked").read_text().splitlines())

    def stop(self) -> None:
        """Ends it; whoever waits for an answer is told."""
        self._process.kill()
        self._process.wait()
