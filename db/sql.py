"""Named SQL statements, kept in ``db/statements/*.sql``.

A block begins with ``-- name: …`` and a line that says why the statement is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

_DIRECTORY: Final = Path(__file__).parent / "statements"
_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def statements(file: str) -> Mapping[str, str]:
    """All statements of ``db/statements/<file>.sql`` by name, in the order of the file.

    Raises:
        ValueError: text before the first name, or a name twice.
    """
    head, *rest = _NAME.split((_DIRECTORY / f"{file}.sql").read_text("utf-8"))
    names, bodies = rest[::2], rest[1::2]
    if head.strip() or len(set(names)) != len(names):
        raise ValueError(f"{file}.sql: text before the first name, or a name twice")
    return MappingProxyType({name: body.strip() for name, body in zip(names, bodies, strict=True)})
