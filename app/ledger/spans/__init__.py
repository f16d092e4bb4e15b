"""Spans: which are stored, in which record, and what a request of them adds."""
