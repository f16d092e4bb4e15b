"""PostgreSQL for a machine that has none: which cluster a data folder has, who runs it, and the server."""

from app.embedded.process import postmaster
from app.embedded.server import EmbeddedPostgres, locate_binaries

__all__ = ["EmbeddedPostgres", "locate_binaries", "postmaster"]
