"""One running service for all tests of a file, where each test is a tenant of its own.

A test sees its own agents, logs and administration alone, whatever the others have left. Import ``database``,
``standing``, ``tenant`` and ``service`` into a test file, or into the ``conftest.py`` of a folder, in the
place of the fixtures of these names: the operator's token of ``service`` is then that of the test's tenant.

Not for tests that look at what tenants share (metrics, tables as a superuser sees them, the default tenant),
change it, or break it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.support.postgres import Database, Server, fresh_database

OPERATOR: Final = "ada"
"""The name of the operator's key, and so of the actor of what is done with it."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(postgres: Server, template: NoopExecutor) -> Iterator[Database]:
    """A fresh migrated database for the tests of the file."""
    with fresh_database(postgres, template.template_dbname) as found:
        yield found


@pytest.fixture(scope="module")
def standing(database: Database) -> Iterator[Running]:
    """The service on a free port, as long as the tests of the file run."""
    with serve(database.app_url) as running:
        yield running


def new_tenant(running: Running) -> dict[str, Any]:
    """Makes a tenant; what was answered, with the key of its operator."""
    slug = f"tenant-{next(_numbers)}"
    root = Client(running.url, running.root_token)
    made = root.post("/v1/tenants", {"slug": slug, "name": slug, "operator": OPERATOR})
    assert made.status == 200, made.raw
    told: dict[str, Any] = made.json
    return told


@pytest.fixture
def tenant(standing: Running) -> dict[str, Any]:
    """A new tenant and the key of its operator, as they were answered."""
    return new_tenant(standing)


@pytest.fixture
def service(standing: Running, tenant: dict[str, Any]) -> Running:
    """The service as the tenant's operator has it."""
    return msgspec.structs.replace(standing, operator_token=tenant["token"])
