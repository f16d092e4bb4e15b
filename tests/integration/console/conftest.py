"""The console on a real service."""

from __future__ import annotations

import pytest

from tests.integration.console.browser import Visit
from tests.integration.http.client import Client
from tests.integration.http.conftest import operator, service
from tests.integration.http.serving import Running

__all__ = ["operator", "service"]


@pytest.fixture
def visit(service: Running) -> Visit:
    """Somebody who is not signed in yet."""
    return Visit(service.url)


@pytest.fixture
def signed_in(service: Running) -> Visit:
    """Somebody signed in with the operator's token."""
    return Visit(service.url).sign_in(service.operator_token)


def key_of(operator: Client, role: str, name: str = "alice", **more: object) -> str:
    """A new API key."""
    reply = operator.post("/v1/keys", {"role": role, "name": name, **more})
    assert reply.status == 200, reply.raw
    return str(reply.json["token"])
