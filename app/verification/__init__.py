"""Verification without a database: of logs, exports and bundles in files, by what they hold themselves.

It needs no package of the server. What a database holds is verified by ``app.audit``; both end in the same
``Outcome``.
"""
