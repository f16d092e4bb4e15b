"""A tenant's own chain of administrative acts: writing it, and what it says of keys, agents and standing."""
