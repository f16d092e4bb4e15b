"""The feed: all records of a tenant as they are committed, to be resumed at any place without a gap."""
