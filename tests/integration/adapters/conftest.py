"""Fixtures of guarded programs."""

from __future__ import annotations

from tests.support.guarding import gone, guard, service, stage

__all__ = ["gone", "guard", "service", "stage"]
