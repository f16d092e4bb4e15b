"""Serves an application exactly as the product serves its own: ``python -m tests.bench.serve F PORT``."""

from __future__ import annotations

import sys

import uvicorn

from app.cli.server import configuration


def main(factory: str, port: str) -> None:
    """Serves ``factory`` (module:function) on this machine until it is terminated."""
    uvicorn.Server(configuration(factory, factory=True, host="127.0.0.1", port=int(port))).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
