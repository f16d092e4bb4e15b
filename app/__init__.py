"""Lineage Trails: a guard for AI agents and the signed trail of all that they ask, do and cause.

Imports go one way: ``http, cli -> ledger -> chain, guard, trace`` and ``ledger -> db``. The packages
``chain``, ``guard`` and ``trace`` are pure: they take time, keys and ids as arguments.
"""
