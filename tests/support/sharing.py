"""Tests share one running service with the others of their file, but those that look into its database.

Import ``shared`` and ``service`` into a test file. A test is a tenant of its own in the
service of its file, unless it has a part in ``database``: whoever asks for that fixture, or for one that
stands on it, gets a service on this very database, with the default tenant and nobody else. Tests that look
at what tenants share, or change it, ask for it with ``@pytest.mark.usefixtures("database")``.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.integration.http.serving import Running, serve
from tests.support.postgres import Database, Server, fresh_database
from tests.support.standing import new_tenant


@pytest.fixture(scope="module")
def shared(postgres: Server, template: NoopExecutor) -> Iterator[Running]:
    """The service of the file's tests, over a database of its own."""
    with fresh_database(postgres, template.template_dbname) as made, serve(made.app_url) as running:
        yield running


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The service: the file's, as a tenant's operator has it, or one on the test's own database."""
    if "database" in request.fixturenames:
        own: Database = request.getfixturevalue("database")
        with serve(own.app_url) as running:
            yield running
        return
    shared: Running = request.getfixturevalue("shared")
    token = new_tenant(shared)["token"]
    yield msgspec.structs.replace(shared, operator_token=token)
