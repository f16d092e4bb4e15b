"""Marks: how far a verification came, signed, so that a later one can go on from there.

A file of two lines of JSON: what is said, and who signed that. It holds for each chain the last record that
was verified (seq, hash, time), the key in force behind it, and what else is needed to go on: the payload of
the genesis record, what the records come to for the guard, and in a file the place of the last line.

The key is derived from the master key where that is at hand. Else it is the auditor's own, in a file beside
the mark (``MARK.key``, 0600, made with the first mark): whoever can read it can make marks, so keep both
where those cannot write whom you watch.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from app.chain.keys import PublicKey, SigningKey, derive
from app.chain.position import Position
from app.chain.verdict import Verdict
from app.errors import KeyMaterialError, SignatureError, StartupError
from app.settings import Settings, load_or_create_secret, master_key_at_hand
from app.verification.outcome import Finding

T = TypeVar("T")

FORMAT: Final = "lineage-verify-mark-v1"
_PURPOSE: Final = "verify-mark"
_DOMAIN: Final = FORMAT.encode() + b"\n"
_MAX_BYTES: Final = 2**31

EVERY_SECS: Final = 5.0
"""A mark is written that often at most, …"""

_WRITING_SHARE: Final = 20
"""… and so that writing it takes at most one part in so many of the time."""


class Marked(msgspec.Struct, frozen=True):
    """How far one chain was verified.

    ``fold`` is what the records come to, with which snapshots behind them are compared. ``tenant_id`` and
    ``begun``, the time of the genesis record, are those of a database; ``offset`` is where the last line of a
    file begins. ``since`` says when a verification began that read the chain from its first record on: a mark
    that went on from a mark rests on both.
    """

    name: str
    tenant: str | None
    agent_id: str | None
    log_uuid: str | None
    position: Position
    since: str
    tenant_id: str | None = None
    begun: datetime | None = None
    fold: dict[str, Any] | None = None
    offset: int = 0


class Mark(msgspec.Struct, frozen=True):
    """A mark as it is signed; ``of`` is "database" or "files", ``trust`` whose signatures counted."""

    format: str
    written: str
    of: str
    trust: str
    chains: tuple[Marked, ...] = ()


class _Signed(msgspec.Struct, frozen=True):
    public_key: str
    signature: str


class _Format(msgspec.Struct):
    format: str = "(none)"


def trust_of(pinned: Iterable[PublicKey], *, keys: bool) -> str:
    """Whose signatures count, as a mark says it."""
    named = sorted(key.hex for key in pinned)
    return "pinned " + " ".join(named) if named else "stored keys" if keys else "nobody"


def mark_key(environ: Mapping[str, str], path: Path, *, make: bool) -> SigningKey:
    """The key that marks in ``path`` are signed with.

    Args:
        environ: says where the master key is.
        path: the mark.
        make: whether an own key may be made, for the first mark.

    Raises:
        StartupError: there is none, or it may not be used; says what to do.
    """
    master = master_key_at_hand(Settings.from_env(environ))
    if master is not None:
        return SigningKey.from_raw(derive(master, _PURPOSE))
    own = path.with_name(path.name + ".key")
    if not make and not own.exists():
        raise StartupError(
            f"nothing says whose mark {path} is: no master key is at hand, and {own} is not there; "
            "verify without --resume"
        )
    try:
        return SigningKey.from_raw(bytes.fromhex(load_or_create_secret(own)))
    except (ValueError, KeyMaterialError):
        raise StartupError(f"{own} holds no key: 64 hexadecimal digits are expected") from None


def read_mark(path: Path, key: SigningKey, *, of: str, trust: str) -> Mark:
    """Reads a mark, which must be whole, of this form, signed with ``key`` and fit the verification.

    Raises:
        StartupError: it does not, or cannot be read; says why.
    """
    try:
        with path.open("rb") as file:
            said, _, signed = file.read(_MAX_BYTES).partition(b"\n")
    except OSError as error:
        raise StartupError(f"the mark {path} cannot be read: {error.strerror}") from None
    found = _decoded(said, _Format)
    if found is not None and found.format != FORMAT:
        raise StartupError(
            f"the mark {path} is of the form {found.format}, this version writes {FORMAT}; "
            "verify without --resume"
        )
    _check_signature(path, said, signed, key)
    mark = _decoded(said, Mark)
    if mark is None:
        raise StartupError(f"the mark {path} is damaged; verify without --resume")
    if mark.of != of:
        raise StartupError(f"the mark {path} is of {mark.of}, not of {of}")
    if mark.trust != trust:
        raise StartupError(
            f"the mark {path} was made with other keys trusted ({mark.trust}; now: {trust}); give the same, "
            "or verify without --resume"
        )
    return mark


def marks_of(
    environ: Mapping[str, str], mark: Path | None, resume: Path | None, *, of: str, trust: str
) -> tuple[Mark | None, MarkWriter | None]:
    """The mark in ``resume`` to go on from, and a writer of the next one to ``mark``, if they are asked for.

    Raises:
        StartupError: one of them cannot be used; says why.
    """
    before = None
    if resume is not None:
        before = read_mark(resume, mark_key(environ, resume, make=False), of=of, trust=trust)
    if mark is None:
        return before, None
    if not os.access(mark.absolute().parent, os.W_OK):  # said now, not after hours
        raise StartupError(
            f"the mark {mark} cannot be written: its folder is not there, or may not be written to"
        )
    key = mark_key(environ, mark, make=True)
    return before, MarkWriter(mark, key, of=of, trust=trust, before=before)


def _check_signature(path: Path, said: bytes, signed: bytes, key: SigningKey) -> None:
    signature = _decoded(signed, _Signed)
    if signature is None:
        raise StartupError(f"the mark {path} is damaged, or no mark at all; verify without --resume")
    if signature.public_key != key.public.hex:
        raise StartupError(
            f"the mark {path} was signed with another key than this one's "
            f"({signature.public_key[:16]}…, not {key.public.hex[:16]}…): it is not this auditor's"
        )
    try:
        key.public.verify((_DOMAIN + said).hex(), signature.signature)
    except SignatureError:
        raise StartupError(
            f"the mark {path} was changed after it was signed; verify without --resume"
        ) from None


def _decoded(text: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


class MarkWriter:
    """Keeps how far each chain is verified, and writes it down now and then.

    Args:
        path: where to; replaced as a whole, so that whoever is interrupted leaves the last mark.
        key: signs it.
        of: "database" or "files".
        trust: whose signatures count.
        before: the mark that this verification goes on from.
    """

    def __init__(
        self, path: Path, key: SigningKey, *, of: str, trust: str, before: Mark | None = None
    ) -> None:
        self._path = path
        self._key = key
        self._of = of
        self._trust = trust
        self._chains = {chain.name: chain for chain in (before.chains if before is not None else ())}
        self._since = {name: chain.since for name, chain in self._chains.items()}
        self._began = now()
        self._next = time.monotonic() + EVERY_SECS

    def tell(self, name: str, marked: Callable[[str], Marked] | None, *, resumed: bool) -> None:
        """How far a chain is verified; None when something is wrong with it.

        Args:
            name: the same in every mark.
            marked: makes the entry, given since when.
            resumed: whether its records were read from the mark before on, not from the first one on.
        """
        if marked is None:
            self._chains.pop(name, None)
        else:
            self._chains[name] = marked(self._since[name] if resumed else self._began)
        if time.monotonic() >= self._next:
            with contextlib.suppress(StartupError):  # it is tried again, and said at the end
                self.write()

    def write(self) -> None:
        """Writes the mark.

        Raises:
            StartupError: it cannot be written.
        """
        started = time.monotonic()
        self._next = started + EVERY_SECS
        said = msgspec.json.encode(
            Mark(FORMAT, now(), self._of, self._trust, tuple(self._chains.values())), order="deterministic"
        )
        signature = self._key.sign(_DOMAIN + said).hex()
        signed = msgspec.json.encode(_Signed(self._key.public.hex, signature))
        try:
            _replace(self._path, said + b"\n" + signed + b"\n")
        except OSError as error:
            raise StartupError(f"the mark {self._path} cannot be written: {error.strerror}") from error
        took = time.monotonic() - started
        self._next = time.monotonic() + max(EVERY_SECS, _WRITING_SHARE * took)


def _replace(path: Path, content: bytes) -> None:
    """Puts ``content`` in the place of the file, whole or not at all, whatever happens meanwhile."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def now() -> str:
    """The time, as a mark and a verdict say it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def written(writer: MarkWriter) -> tuple[Finding, ...]:
    """Writes the last mark; what keeps it from that is a finding."""
    try:
        writer.write()
    except StartupError as error:
        return (Finding(Verdict.UNCHECKED, "mark", error.message),)
    return ()
