"""The console: pages for people, made on the server from the same ledger that the API speaks to."""
