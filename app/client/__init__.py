"""The Python client: ``LineageTracker`` posts what an agent does, ``Guard`` asks before it acts.

``pip install lineage-trails`` alone is enough: nothing here needs the server's packages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.client.decisions import ActionDenied
    from app.client.errors import ClientError
    from app.client.guard import Guard
    from app.client.tracker import LineageTracker

__all__ = ["ActionDenied", "ClientError", "Guard", "LineageTracker"]

_HOMES = {
    "ActionDenied": "app.client.decisions",
    "ClientError": "app.client.errors",
    "Guard": "app.client.guard",
    "LineageTracker": "app.client.tracker",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  what the module has under this name
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found
