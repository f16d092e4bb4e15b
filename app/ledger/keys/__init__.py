"""Signing keys and API keys: sealed in the database, opened in memory, or held by a source elsewhere."""
