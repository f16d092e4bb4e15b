"""A browser without a screen or scripts: cookies, redirects one at a time, forms as browsers post them."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlencode, urlsplit

import msgspec

TIMEOUT_SECS = 20.0


class Shown(msgspec.Struct, frozen=True):
    """An answer: status, headers (names in lower case, repeated ones joined by newlines), text."""

    status: int
    headers: dict[str, str]
    text: str


class Visit:
    """One visitor's cookies on one service."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> Shown:
        return self._send("GET", path, None, headers)

    def post(self, path: str, form: dict[str, str], **headers: str) -> Shown:
        own = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return self._send("POST", path, urlencode(form).encode(), own)

    def sign_in(self, key: str) -> Visit:
        shown = self.post("/sign-in", {"key": key})
        assert shown.status == 303, shown.text
        return self

    def csrf(self, path: str = "/") -> str:
        """The token that the forms of a page carry."""
        match = re.search(r'name="csrf" value="([^"]+)"', self.get(path).text)
        assert match is not None
        return match[1]

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Shown:
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_SECS)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            named["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            self._keep(answer.headers.get_all("set-cookie") or [])
            told: dict[str, str] = {}
            for name, value in answer.getheaders():
                key = name.lower()
                told[key] = f"{told[key]}\n{value}" if key in told else value
            return Shown(answer.status, told, answer.read().decode(errors="surrogateescape"))
        finally:
            connection.close()

    def _keep(self, cookies: list[str]) -> None:
        for cookie in cookies:
            name, _, value = cookie.partition(";")[0].partition("=")
            if value:
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)
