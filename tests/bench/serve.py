"""Serves an application exactly as the product serves its own: ``python -m tests.bench.serve F PORT``.

The same server with the same settings, one process, no log of requests; and the garbage collector as the
product sets it, for a floor as for ourselves.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import uvicorn

from app.asgi import _look_for_garbage_seldom
from app.cli.server import configuration


def main(factory: str, port: str) -> None:
    """Serves ``factory`` (module:function) on this machine until it is terminated."""
    uvicorn.Server(
        configuration(lambda: _made(factory), factory=True, host="127.0.0.1", port=int(port))
    ).run()


def _made(factory: str) -> Any:
    module, _, name = factory.partition(":")
    application = getattr(importlib.import_module(module), name)()
    _look_for_garbage_seldom()
    return application


if __name__ == "__main__":
    main(*sys.argv[1:])
