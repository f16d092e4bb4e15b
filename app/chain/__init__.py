"""The pure core of the trail: canonical JSON, records, keys, linking and verification.

Nothing in this package reads a clock, draws randomness, looks at the environment or does I/O: times, keys
and nonces are arguments. ``tests/architecture/test_purity.py`` reads the imports.
"""
