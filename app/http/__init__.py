"""HTTP: translation only. What a caller sends becomes a call of the ledger, what it says becomes an answer."""
