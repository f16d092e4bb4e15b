"""Fixtures of the database tests: two tenants, and a chain of the first."""

from __future__ import annotations

from uuid import UUID

import pytest

from db.pool import Pool
from tests.support.rows import Maker, register_tenant, started_chain


@pytest.fixture
async def tenant(pool: Pool) -> UUID:
    """A tenant with a signing key."""
    return await register_tenant(pool, "acme")


@pytest.fixture
async def other_tenant(pool: Pool) -> UUID:
    """Another tenant with the same signing key."""
    return await register_tenant(pool, "umbrella")


@pytest.fixture
async def maker(pool: Pool, tenant: UUID) -> Maker:
    """A chain of ``tenant`` with three records; makes the next ones."""
    return await started_chain(pool, tenant, records=3)
