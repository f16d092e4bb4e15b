"""The service does what its description says, whatever is sent to it and whoever sends it.

Some thousand requests, all made by schemathesis from the OpenAPI document: of each operation the boundary
cases, and cases drawn at random, right and wrong ones. Nothing is a 500, nothing is answered that is not
described (status, headers, media type, body), what the description forbids is refused, nobody gets what the
role does not grant, and no answer and no line of the log holds a token. Afterwards every chain verifies.

``TRAILS_TEST_FUZZ`` is how many requests are drawn beside those of the boundary cases; ``make fuzz`` draws
many. The same number draws the same cases each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pytest_postgresql.executors import NoopExecutor
from schemathesis import Case, GenerationMode

from app.http.access import PERMISSION
from app.http.routes import ROUTES
from app.principal import PERMISSIONS, Role
from tests.support.cli import verify
from tests.support.fuzzing import CALLERS, Fuzzed, service
from tests.support.postgres import Server, fresh_database
from tests.support.server import MASTER_KEY

OPERATIONS = [
    (path.replace(":str", ""), method.lower(), handler.opt.get(PERMISSION))
    for handler in ROUTES
    for path in sorted(handler.paths)
    for method in sorted(handler.http_methods)
]

DRAWN = int(os.environ.get("TRAILS_TEST_FUZZ", "900"))
CASES = max(1, DRAWN // (len(OPERATIONS) * len(GenerationMode) * len(CALLERS)))
"""Right ones of each operation, and as many wrong ones; every caller sends each."""

SHOWN = 8
"""Failures of an operation that are shown."""

drawn = settings(
    max_examples=CASES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def fuzzed(
    postgres: Server, template: NoopExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fuzzed]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with fresh_database(postgres, template.template_dbname) as database, service(database, folder) as server:
        found = Fuzzed(server, database)
        yield found
        found.close()


@pytest.mark.parametrize(("path", "method", "permission"), OPERATIONS, ids=str)
def test_an_operation_does_what_its_description_says(
    fuzzed: Fuzzed, path: str, method: str, permission: str | None
) -> None:
    before = len(fuzzed.failures)
    fuzzed.renew(str(OPERATIONS.index((path, method, permission))))
    able = next(str(role) for role in Role if permission is None or permission in PERMISSIONS[role])
    for number, case in enumerate(fuzzed.coverage(path, method)):
        fuzzed.point(case)
        fuzzed.send(case, able, permission)
        fuzzed.send(case, CALLERS[number % len(CALLERS)], permission)
    operation = fuzzed.schema[path][method]
    takes_something = bool(operation.body or any(operation.iter_parameters()))
    for mode in GenerationMode if takes_something else [GenerationMode.POSITIVE]:
        send_drawn(fuzzed, path, method, permission, mode)
    found = fuzzed.failures[before:]
    assert not found, f"{len(found)} failures\n" + "\n\n".join(str(failure) for failure in found[:SHOWN])
    assert f"{method.upper()} {path}" in fuzzed.reached, "nobody was answered 200: nothing was tried here"


def send_drawn(fuzzed: Fuzzed, path: str, method: str, permission: str | None, mode: GenerationMode) -> None:
    """Sends cases of an operation that are drawn at random, each as everybody."""

    @drawn
    @given(case=fuzzed.schema[path][method].as_strategy(generation_mode=mode))
    def run(case: Case) -> None:
        fuzzed.point(case)
        for form in (case, *fuzzed.as_lines(case)):
            for caller in CALLERS:
                fuzzed.send(form, caller, permission)

    run()


def test_afterwards_every_chain_verifies_and_the_log_is_clean(fuzzed: Fuzzed) -> None:
    if not fuzzed.sent:
        pytest.skip("nothing was sent")
    log = fuzzed.server.log
    assert "Traceback" not in log
    assert "unexpected error" not in log
    assert not [secret for secret in fuzzed.secrets if secret in log]
    found = verify(env={"TRAILS_DATABASE_URL": fuzzed.database.admin_url, "TRAILS_MASTER_KEY": MASTER_KEY})
    assert found.code == 0, found
    print(f"{fuzzed.sent.total()} requests: {dict(fuzzed.sent)}")  # noqa: T201  what the long run tells
