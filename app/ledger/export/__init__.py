"""Exports: records and views of one tenant as files, in one snapshot, complete or clearly broken off."""
