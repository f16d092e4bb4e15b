"""The command ``trails``: start, verify, export, look at records, see a tampered copy being found."""
