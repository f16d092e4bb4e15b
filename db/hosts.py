"""A URL that names several servers (a primary and its standbys): which one a new connection reaches.

asyncpg tries them in turn and gives the first of them all the time there is: a machine that is dead without
having said so would keep a failover from ever being seen. Here each has a share of it, the one that served
last is asked first, and one that is starting up or going down is passed by.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

HOST_SECONDS: Final = 1.5
"""What each of several servers gets to take a login: two of them within the time that is waited for one."""

_PASSED_BY: Final = (
    OSError,  # TimeoutError is one
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.TargetServerAttributeNotMatched,
)
"""What another server may do better. A wrong password is wrong everywhere, and told at once."""


def each_host(url: str) -> list[str]:
    """The URL once for each server that it names, in its order."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    return [urlunsplit(parts._replace(netloc=login + at + host)) for host in hosts.split(",")]


class Hosts:
    """The servers of one URL; ``connect`` has the form that asyncpg's pools ask for."""

    def __init__(self, url: str) -> None:
        self._urls = each_host(url)

    async def connect(self, *_: object, **options: Any) -> Any:  # noqa: ANN401  asyncpg's own
        """A connection to the first server that takes it.

        Raises:
            asyncpg's errors and the network's; with several servers, what the last one that was tried said.
        """
        if len(self._urls) == 1:
            return await asyncpg.connect(self._urls[0], **options)
        options["timeout"] = HOST_SECONDS
        if "target_session_attrs" not in self._urls[0]:
            options["target_session_attrs"] = "read-write"  # all that is of use here
        for url in (tried := list(self._urls)):
            try:
                found = await asyncpg.connect(url, **options)
            except _PASSED_BY:
                if url is tried[-1]:
                    raise
            else:
                self._urls.remove(url)
                self._urls.insert(0, url)
                return found
        raise AssertionError("a URL names one server at least")
