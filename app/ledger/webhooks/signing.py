"""Signatures of what is told, as Standard Webhooks has them (standardwebhooks.com, version 1.0.0).

The receiver has the secret, and checks ``webhook-signature`` over id, time and body: nobody else can make it
believe in an event, nor replay an old one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  what secrets begin with
SECRET_BYTES: Final = 32


def secret_text(secret: bytes) -> str:
    """The secret as it is shown, once."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def headers_of(secret: bytes, event_id: str, at_secs: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt.

    Args:
        secret: of the webhook.
        event_id: the same in each attempt; it has no dot.
        at_secs: when the attempt is made, seconds since 1970.
        body: what is sent.
    """
    signed = f"{event_id}.{at_secs}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(at_secs),
        "webhook-signature": f"v1,{signature}",
    }
