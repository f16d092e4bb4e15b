"""Webhooks: the feed told to others, signed, in order, until it is taken."""
