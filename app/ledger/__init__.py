"""Joins the pure core and the database: the act flow, the rebuild flow, and reads."""

from app.ledger.ledger import Ledger

__all__ = ["Ledger"]
