"""Units of systemd as they are written: a section's names, each with all its values in order."""

from __future__ import annotations

from collections import defaultdict

from tests.support.tools import DEPLOY


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """The unit of that file name in ``deploy/systemd``."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = defaultdict(list)
    for line in (DEPLOY / "systemd" / name).read_text("utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), defaultdict(list))
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section[key].append(value)
    return sections
