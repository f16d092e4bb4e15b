"""What signs records: the one interface between the chain and where a private key is kept.

``SigningKey`` holds a key in memory. A key that never leaves its keeper (a KMS, an HSM, an agent behind a
socket) is another implementation, which needs no change here: see ``app.ledger.keys.signers``.
"""

from __future__ import annotations

from typing import Protocol

from app.chain.keys import PublicKey


class Signer(Protocol):
    """Signs with one Ed25519 key (RFC 8032, pure, no context)."""

    @property
    def public(self) -> PublicKey:
        """The key's public half: ``PublicKey.load`` of its 64 hex digits."""

    @property
    def remote(self) -> bool:
        """Whether signing waits for something else than this process's CPU.

        ``sign`` of such a signer is called in threads, several at once, and in bounded time; of any other in
        the event loop, which must not wait.
        """

    def sign(self, message: bytes, /) -> bytes:
        """The signature over ``message``: 64 bytes. Raises whatever it likes when there is none."""
