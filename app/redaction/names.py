"""Built-in patterns by name: what a tenant's list may hold, and what each of them means.

A list of rules is read wherever records are, also where nothing is taken out and RE2 is not installed: what
finds the secrets is in ``app.redaction.patterns``.
"""

from __future__ import annotations

from typing import Final

MEANINGS: Final = {
    "secret_members": (
        "values of members called password, secret, api_key, authorization, cookie, private_key and the "
        "like, also where they are spelled out in text"
    ),
    "bearer_tokens": (
        "tokens behind the words Bearer and Basic, JSON web tokens, and the keys of this service"
    ),
    "cloud_keys": (
        "keys of AWS, Google, Azure, GitHub, GitLab, Slack, Stripe, OpenAI, Anthropic, Hugging Face, npm, "
        "PyPI, SendGrid and others by their prefixes, and signatures of signed URLs"
    ),
    "private_keys": "private keys in PEM form, whole or cut off",
    "url_passwords": "passwords in URLs such as postgresql://user:password@host",
    "card_numbers": "card numbers: 13 to 19 digits, also with spaces or hyphens, with a card's check digit",
}
"""In the order in which a text is scrubbed."""
