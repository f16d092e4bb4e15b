"""What an auditor does with a whole database: verify it, trusting no column, ask it, take a chain out."""
