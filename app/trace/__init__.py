"""Trace trees: nodes and the fragments in which they are recorded. Pure."""
