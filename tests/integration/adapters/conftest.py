"""Fixtures of guarded programs; each test is a tenant of its own."""

from __future__ import annotations

from tests.support.guarding import gone, guard, stage
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "gone", "guard", "service", "stage", "standing", "tenant"]
