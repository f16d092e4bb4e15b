"""HTTP: translation only. What a caller sends becomes a call of the ledger, and its word an answer."""
