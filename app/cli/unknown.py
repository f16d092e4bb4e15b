"""Environment variables that look like settings and are none: a typing error would go unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.cli.exits import complain
from app.settings import FILE_SUFFIX, SETTINGS

_PREFIX: Final = "TRAILS_"
_OTHERS: Final = ("TRAILS_TEST_", "TRAILS_BENCH_")
"""What the tests and benchmarks read."""


def warn_of_unknown_settings(environ: Mapping[str, str]) -> None:
    """Says on standard error which ``TRAILS_*`` variables mean nothing, and which may have been meant."""
    known = [setting.name for setting in SETTINGS]
    known += [setting.name + FILE_SUFFIX for setting in SETTINGS if setting.secret]
    for name in sorted(environ):
        if name.startswith(_PREFIX) and not name.startswith(_OTHERS) and name not in known:
            complain(f"{name} is no setting and is ignored{_meant(name, known)}")


def _meant(name: str, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  slow, and rarely needed

    # Without what all have in common, which would make any two of them alike.
    near = get_close_matches(
        name.removeprefix(_PREFIX), [other.removeprefix(_PREFIX) for other in known], n=1
    )
    return f"; did you mean {_PREFIX}{near[0]}?" if near else "; trails serve --help lists all"
