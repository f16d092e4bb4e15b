"""Which of several trusted keys a chain is held against.

A tenant that rotated its key has chains that begin with either key, and a verifier may pin both.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.chain.keys import PublicKey
from app.chain.strict import RECORD_DEPTH, RECORD_STRING, parse
from app.errors import InvalidJsonError


def trusted_key(first_text: str | None, keys: Mapping[str, PublicKey] | None) -> PublicKey | None:
    """Which of several trusted keys a chain has to begin with: the one that its first record names.

    A chain that names none of them is held against one of them all the same, and so does not verify.

    Args:
        first_text: the text of the chain's first record, untrusted; None when there is none.
        keys: trusted keys by their hex; None or empty when no key is known.
    """
    if not keys:
        return None
    return keys.get(_named_key(first_text or "")) or next(iter(keys.values()))


def _named_key(text: str) -> str:
    try:
        record = parse(
            text.encode("utf-8", "surrogatepass"), max_depth=RECORD_DEPTH, max_string=RECORD_STRING
        ).value
    except InvalidJsonError:
        return ""
    payload = record.get("payload") if isinstance(record, dict) else None
    named = payload.get("public_key") if isinstance(payload, dict) else None
    return named if isinstance(named, str) else ""
