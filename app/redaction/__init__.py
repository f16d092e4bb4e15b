"""Redaction: secrets in what agents send are taken out before anything is hashed and signed (case T01).

A record cannot be changed later, so what must not stay is never written. The record says what was taken out,
where, by which rule of which version of the tenant's list.

The list alone is at hand here; ``app.redaction.redactor`` follows it, and needs RE2, a package of the server.
"""

from app.redaction.rules import DEFAULT_RULES, RuleList

__all__ = ["DEFAULT_RULES", "RuleList"]
