"""What looks whether all is still there: whole chains, round by round, and heads that are kept elsewhere."""
