"""Which cluster belongs to a data folder: the folder says so itself, wherever it is moved or copied.

``postgres.home`` holds the cluster's path, absolute or relative to the folder. It is written before the
cluster is made, so that starters at once agree on one place, and followed ever after. A folder from before
that file existed has its cluster inside, or (root's) below ``/var/lib/lineage-trails`` at a name made from
the folder's path. What holds keys or a ``database.url`` never gets an empty database beside them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from pathlib import Path
from typing import Final

from app.errors import StartupError
from app.settings import MASTER_KEY_FILE, OPERATOR_TOKEN_FILE

STATE_DIR: Final = Path("/var/lib/lineage-trails")
"""Where clusters are when root starts the service: an unprivileged user may not enter root's folders."""

HOME_FILE: Final = "postgres.home"
"""The file in the data folder that names its cluster."""

URL_FILE: Final = "database.url"
"""The file in the data folder with the administrator's URL, the only copy of the superuser's password."""

CLUSTER: Final = "postgres"
"""A cluster's own folder; its log and its lock lie beside it."""

_log = logging.getLogger(__name__)


def belongings(data_dir: Path) -> tuple[str, ...]:
    """What in the folder belongs to a database that was in use: keys, an administrator's URL."""
    files = (URL_FILE, MASTER_KEY_FILE, OPERATOR_TOKEN_FILE)
    return tuple(str(file) for file in files if (data_dir / file).exists())


def known_cluster(data_dir: Path) -> Path | None:
    """The folder's cluster, whether it is there or not; None when the folder says nothing of any.

    Raises:
        StartupError: ``postgres.home`` holds no path.
    """
    named = named_cluster(data_dir)
    if named is not None:
        return named
    inside = data_dir / CLUSTER
    if inside.exists():
        return inside
    before = by_path(data_dir) / CLUSTER
    return before if _root() and belongings(data_dir) and before.exists() else None


def named_cluster(data_dir: Path) -> Path | None:
    """The cluster that ``postgres.home`` names; None without that file.

    Raises:
        StartupError: it holds no path.
    """
    file = data_dir / HOME_FILE
    try:
        text = file.read_text("utf-8").strip()
    except FileNotFoundError:
        return None
    if not text or "\n" in text or "\0" in text:
        raise StartupError(f"{file} must hold one line, the path of the folder's PostgreSQL cluster")
    return data_dir / text


def by_path(data_dir: Path) -> Path:
    """Root's place for a folder at this path."""
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:12]
    return STATE_DIR / name if _root() else data_dir


def reserve(data_dir: Path) -> Path:
    """Gives a new folder its cluster's place and returns it; of starters at once, one decides.

    Raises:
        StartupError: ``postgres.home`` holds no path.
        OSError: no permission.
    """
    if not _root():
        return name_cluster(data_dir, data_dir / CLUSTER)
    home = _new_home(data_dir)
    named = name_cluster(data_dir, home / CLUSTER)
    if named != home / CLUSTER:
        home.rmdir()
    return named


def name_cluster(data_dir: Path, cluster: Path) -> Path:
    """Writes ``postgres.home`` unless it is there; returns the cluster that it names."""
    inside = cluster == data_dir / CLUSTER
    draft = data_dir / f".{HOME_FILE}.{secrets.token_hex(8)}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{CLUSTER if inside else cluster}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            (data_dir / HOME_FILE).hardlink_to(draft)
        except FileExistsError:
            return named_cluster(data_dir) or cluster
    finally:
        draft.unlink()
    return cluster


def refuse_empty_database(data_dir: Path, cluster: Path) -> None:
    """Refuses to begin with an empty database in a folder that belongs to another one.

    Raises:
        StartupError: says what is missing, and the ways out.
    """
    held = belongings(data_dir)
    if not held:
        return
    raise StartupError(
        f"{data_dir} holds {' and '.join(held)}, but their database is not there: {cluster} is missing. "
        f"Bring that folder back, or write the path of where it is now into {data_dir / HOME_FILE}"
        + (f" (clusters are {STATE_DIR}/*/{CLUSTER})" if _root() else "")
        + "; if the records are in another server, set TRAILS_DATABASE_URL; to begin with an empty database, "
        "name a new folder in TRAILS_DATA_DIR"
    )


def _new_home(data_dir: Path) -> Path:
    """Makes a folder that no cluster was ever in: a moved data folder may still name an older one."""
    if not STATE_DIR.exists():
        STATE_DIR.mkdir(parents=True, exist_ok=True)
        STATE_DIR.chmod(0o755)  # not left to the umask
    first = by_path(data_dir)
    number, home = 1, first
    while True:
        try:
            home.mkdir(mode=0o700)
        except FileExistsError:
            if (home / CLUSTER).exists():
                _log.warning("the database of an earlier data folder at %s is kept in %s", data_dir, home)
            number += 1
            home = first.with_name(f"{first.name}-{number}")
        else:
            return home


def _root() -> bool:
    return os.geteuid() == 0
