"""Redaction: secrets in what agents send are taken out before anything is hashed and signed (case T01).

A record cannot be changed later, so what must not stay is never written. The record says what was taken out,
where, by which rule of which version of the tenant's list.
"""

from app.redaction.redactor import Findings, Redactor
from app.redaction.rules import DEFAULT_RULES, RuleList

__all__ = ["DEFAULT_RULES", "Findings", "Redactor", "RuleList"]
