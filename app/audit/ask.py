"""Ask: one query of the auditors' cookbook, for one tenant, in a transaction that cannot write.

It runs with the service's own role where the login may take it, so that row security decides whatever the
query says; parameters go to the server apart from the SQL text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import msgspec

from app.audit.session import connected
from app.errors import BadRequestError, NotFoundError, StartupError, TooManyRequestsError
from db.errors import translate
from db.pool import tenant_setting
from db.schema import APP_ROLE, DEFAULT_TENANT_SLUG
from db.sql import statements

if TYPE_CHECKING:
    from db.cookbook import Recipe
    from db.pool import Connection

_SQL: Final = statements("ask")
_SESSION: Final = statements("session")
_REGISTRY: Final = statements("registry")

_TIMEOUT: Final = (
    "the query took longer than {seconds} seconds and was stopped; narrow it with --param, or give --timeout"
)


class Answer(msgspec.Struct, frozen=True):
    """Names and PostgreSQL types of the columns, and the rows as they come from the server."""

    columns: tuple[tuple[str, str], ...]
    rows: AsyncIterator[Sequence[Any]]


@asynccontextmanager
async def asking(
    url: str, recipe: Recipe, values: Sequence[object], *, tenant: str | None, timeout_secs: int
) -> AsyncIterator[Answer]:
    """Runs a query; its rows can be read while the block runs.

    Args:
        url: whose login.
        recipe: which query.
        values: one for each of its parameters, in their order, of the type that it says.
        tenant: slug of the tenant to ask about; None: the default one, or the login's own.
        timeout_secs: after which the server gives up.

    Raises:
        StartupError: the database was never migrated.
        NotFoundError: no such tenant.
        BadRequestError: the server cannot compute with these values.
        TooManyRequestsError: it takes too long.
        UnavailableError: the database is away.
    """
    with translate(), _explained(timeout_secs):
        async with (
            connected(url) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await _enter(connection, tenant)
            await connection.execute(_SQL["bounded"], str(timeout_secs * 1000))
            prepared = await connection.prepare(recipe.statement)
            columns = tuple((column.name, column.type.name) for column in prepared.get_attributes())
            yield Answer(columns, _rows(prepared.cursor(*values, prefetch=500)))


async def _rows(cursor: Any) -> AsyncIterator[Sequence[Any]]:  # noqa: ANN401  asyncpg's cursor factory
    async for row in cursor:
        yield tuple(row)


async def _enter(connection: Connection, tenant: str | None) -> None:
    """Takes the service's role where this login may, and names the tenant to row security."""
    scope = await connection.fetchrow(_SQL["login"], APP_ROLE)
    if scope is None or not scope["migrated"]:
        raise StartupError("the database holds no views to ask: run trails migrate")
    if not scope["may_serve"]:
        if tenant is not None:
            raise NotFoundError(f"the login {scope['role']} sees its own tenant only: leave --tenant out")
        return
    await connection.execute(f"SET LOCAL ROLE {APP_ROLE}")
    slug = tenant or DEFAULT_TENANT_SLUG
    await connection.execute(_SESSION["name_slug"], slug)
    found = await connection.fetchrow(_REGISTRY["tenant_by_slug"], slug)
    if found is None:
        raise NotFoundError(f"there is no tenant {slug}; check --tenant")
    await connection.execute(_SESSION["name_tenants"], tenant_setting(found["tenant_id"]))


@contextmanager
def _explained(timeout_secs: int) -> Iterator[None]:
    """What a query itself can run into, as errors of ours."""
    try:
        yield
    except asyncpg.QueryCanceledError:
        raise TooManyRequestsError(_TIMEOUT.format(seconds=timeout_secs)) from None
    except asyncpg.DataError as error:
        raise BadRequestError(f"the database cannot compute with these parameters: {error}") from error
