"""Sources of signing keys outside the database: a URI whose scheme chooses who opens it.

``file:/path``  a file with mode 0600 or stricter, no symbolic link
``env:NAME``    an environment variable of the service

Both hold an Ed25519 key as 64 hexadecimal digits or as PEM (PKCS 8, no password). Any other scheme is that of
an entry point in the group ``lineage_trails.signers``: a function that takes the URI and returns a ``Signer``
(``app.chain.signer``). A package that declares one needs no change here::

    [project.entry-points."lineage_trails.signers"]
    kms = "acme_kms:open_signer"

Opening may wait (for a network, say); it happens in a thread, in every process, and again after each
signature that failed. The URI is stored sealed; credentials belong to the source's own configuration all the
same, since a command line shows what is on it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from app.chain.keys import PublicKey, SigningKey
from app.errors import KeyMaterialError, StartupError, UnavailableError
from app.settings import (
    MASTER_KEY_FILE,
    OPERATOR_TOKEN_FILE,
    SETTINGS,
    read_secret,
    secret_variable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from app.chain.signer import Signer

GROUP: Final = "lineage_trails.signers"
"""The entry points that open further schemes."""

MAX_AT_ONCE: Final = 16
"""Signatures of one source that may be under way; one that never comes back keeps its place."""

_URI: Final = re.compile(r"([a-z][a-z0-9+.-]{0,31}):[!-~]{1,2000}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")

_OWN_VARIABLES: Final = frozenset(setting.name for setting in SETTINGS if setting.secret)
_OWN: Final = (
    "{where} is a secret of the service's own, which others know; a signing key is made for signing alone"
)

_log: Final = logging.getLogger("trails.signers")


def scheme_of(uri: str) -> str:
    """The scheme of a source's URI.

    Raises:
        KeyMaterialError: it is no URI of at most 2,000 printable ASCII characters.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise KeyMaterialError("a source of signing keys is named by a URI such as file:/run/keys/acme.pem")
    return match[1]


def open_signer(uri: str) -> Signer:
    """Opens the source that a URI names; may wait.

    Raises:
        KeyMaterialError: says what to change; shows no key, and of a foreign source's error only its kind.
    """
    scheme = scheme_of(uri)
    if (opener := _OPENERS.get(scheme)) is not None:
        return opener(uri)
    found = list(entry_points(group=GROUP, name=scheme))
    if len(found) != 1:
        known = "no installed package opens" if not found else "several installed packages open"
        raise KeyMaterialError(f"{known} signing keys of the scheme {scheme}:")
    try:
        signer: Signer = found[0].load()(uri)
        public = signer.public
    except Exception as error:  # noqa: BLE001  whatever a foreign package raises, its text may hold a secret
        raise KeyMaterialError(f"the source {scheme}: does not open ({type(error).__name__})") from None
    if not isinstance(public, PublicKey):
        raise KeyMaterialError(f"the source {scheme}: names no public key")
    return signer


def _from_file(uri: str) -> SigningKey:
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.netloc or parts.query or parts.fragment or not path.is_absolute():
        raise KeyMaterialError("a key's file is named by its whole path, as in file:/run/keys/acme.pem")
    if any(path.match(str(own)) for own in (MASTER_KEY_FILE, OPERATOR_TOKEN_FILE)):
        raise KeyMaterialError(_OWN.format(where=path))
    try:
        return _key_of(read_secret(path), str(path))
    except StartupError as error:
        raise KeyMaterialError(error.message) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise KeyMaterialError(f"{path} is a symbolic link; name the file itself") from None
        raise KeyMaterialError(f"{path}: {error.strerror}") from None
    except ValueError:  # no text, or no path
        raise KeyMaterialError(f"{path} holds no key") from None


def _from_environment(uri: str) -> SigningKey:
    name = uri.removeprefix("env:")
    if _NAME.fullmatch(name) is None:
        raise KeyMaterialError("a variable's name has the characters A-Z a-z 0-9 _, as in env:ACME_KEY")
    if name in _OWN_VARIABLES:
        raise KeyMaterialError(_OWN.format(where=name))
    text = secret_variable(name)
    if text is None:
        raise KeyMaterialError(f"the environment variable {name} is not set")
    return _key_of(text.strip(), name)


_OPENERS: Final[Mapping[str, Callable[[str], SigningKey]]] = {"file": _from_file, "env": _from_environment}


def _key_of(text: str, where: str) -> SigningKey:
    if _HEX.fullmatch(text) is not None:
        return SigningKey.from_raw(bytes.fromhex(text))
    try:
        key = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyMaterialError(
            f"{where} must hold an Ed25519 key: 64 hexadecimal digits, or PEM (PKCS 8) without a password"
        )
    return SigningKey.from_raw(key.private_bytes_raw())


class SourceSigner:
    """A tenant's key that a source signs with. It is opened when it has to sign, not to be read or verified.

    A signature of a foreign source is verified before it is used: a wrong one never becomes a record.
    """

    __slots__ = ("_failing", "_opened", "_uri", "public", "remote", "slots")

    public: PublicKey
    remote: bool
    """Whether ``sign`` may wait: until it is open it may, and then the source itself says so."""
    slots: asyncio.Semaphore
    """A place for each signature under way (``MAX_AT_ONCE``)."""

    def __init__(self, public: PublicKey, uri: str) -> None:
        self.public = public
        self.remote = True
        self.slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._uri = uri
        self._opened: Signer | None = None
        self._failing: str | None = None

    def sign(self, message: bytes, /) -> bytes:
        """The signature over ``message``.

        Raises:
            UnavailableError: the source does not open, holds another key, or does not sign.
        """
        try:
            signature = self._signed(message)
        except Exception as error:  # noqa: BLE001  whatever a foreign package raises
            raise self.failed(_told(error)) from None
        self._failing = None
        return signature

    def failed(self, reason: str) -> UnavailableError:
        """Notes that there was no signature, and why; the source is opened anew for the next one."""
        self._opened, self.remote = None, True
        if reason != self._failing:  # once, until it is another
            _log.warning("signing key %s: %s: %s", self.public.key_id, scheme_of(self._uri), reason)
        self._failing = reason
        return UnavailableError(
            f"signing key {self.public.key_id} cannot be used at the moment: the source that holds it does "
            "not sign (the log says why); nothing was allowed, try again"
        )

    def _signed(self, message: bytes) -> bytes:
        signer = self._opened
        if signer is None:
            signer = open_signer(self._uri)
            if signer.public != self.public:
                raise KeyMaterialError(f"the source holds another key, {signer.public.key_id}")
            self._opened, self.remote = signer, getattr(signer, "remote", True) is not False
        signature = signer.sign(message)
        if not isinstance(signer, SigningKey):
            self.public.verify(message.hex(), signature.hex())
        return signature

    def __repr__(self) -> str:
        return f"SourceSigner(key_id={self.public.key_id}, {scheme_of(self._uri)}:)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise KeyMaterialError("a signer is not pickled")


def _told(error: Exception) -> str:
    """What the log says: our own sentences whole, of a foreign error its kind."""
    return error.message if isinstance(error, KeyMaterialError) else f"it failed ({type(error).__name__})"
