"""How an export is written: JSON lines, and the interface of all forms.

A writer turns rows into bytes and does no I/O. Whoever drives it hands on what each call returns, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from app.cells import json_row
from app.chain.canonical import canonical
from app.chain.record import SignedRecord, export_line
from app.chain.statement import FORM
from app.ledger.export.told import ChainEnd, Sums, Told

if TYPE_CHECKING:
    from app.chain.strict import JsonObject
    from db.exports import Chain, Record

Columns = Sequence[tuple[str, str]]
"""Name and PostgreSQL type of each column."""


class Writer:
    """One form. The calls come in order: begin, (begin_chain, records, end_chain) or rows, close, end."""

    about: ClassVar[str] = "trailer"
    """What the statement at the end is about; see ``app.chain.statement``."""

    has_statement: ClassVar[bool] = True
    """Whether there is one."""

    def __init__(self, told: Told, columns: Columns) -> None:
        self.told = told
        self.columns = columns

    def begin(self) -> bytes:
        """What stands before all rows."""
        return b""

    def begin_chain(self, chain: Chain) -> bytes:  # noqa: ARG002  most forms say nothing there
        """What stands before a chain's records."""
        return b""

    def records(self, records: Sequence[Record]) -> bytes:
        """Records of a chain."""
        return self.rows([msgspec.structs.astuple(record) for record in records])

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Rows of ``columns``."""
        raise NotImplementedError

    def end_chain(self, end: ChainEnd) -> bytes:  # noqa: ARG002  as above
        """What stands behind a chain's records."""
        return b""

    def close(self) -> bytes:
        """What stands behind all rows, before the statement."""
        return b""

    def says(self, sums: Sums) -> JsonObject:
        """What the statement says."""
        return {**self.told.to_json(), **sums.to_json(), "complete": True}

    def end(self, statement: str) -> bytes:
        """The statement and what stands behind it."""
        raise NotImplementedError


class Lines(Writer):
    """JSON lines: one that says what follows, records as they were signed or rows, one that it was all."""

    def begin(self) -> bytes:
        """The line that announces the statement: without it nobody could tell that the end is missing."""
        about = {**self.told.to_json(), "form": FORM, "public_keys": self.told.keys_json()}
        return _line(canonical({"export": about}))

    def records(self, records: Sequence[Record]) -> bytes:
        """The export lines, each the signed text as it stands with its tail."""
        return b"".join(map(line_of, records))

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Rows as JSON objects."""
        return b"".join(json_row(self.columns, row) + b"\n" for row in rows)

    def end_chain(self, end: ChainEnd) -> bytes:
        """The line that says that a chain was all."""
        return _line(canonical({"chain": end.to_json()}))

    def end(self, statement: str) -> bytes:
        """The last line."""
        return _line(statement)


class BareLines(Lines):
    """The same lines and nothing else, for whoever reads records alone.

    No piece ends where a record does: what is broken off ends in the middle of a line, as good as always.
    """

    has_statement = False

    def __init__(self, told: Told, columns: Columns) -> None:
        super().__init__(told, columns)
        self._held = b""

    def begin(self) -> bytes:
        """Nothing."""
        return b""

    def records(self, records: Sequence[Record]) -> bytes:
        """The export lines but for the end of the last one."""
        return self._all_but_the_end(super().records(records))

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Rows but for the end of the last one."""
        return self._all_but_the_end(super().rows(rows))

    def end_chain(self, end: ChainEnd) -> bytes:  # noqa: ARG002  as of all forms
        """Nothing."""
        return b""

    def close(self) -> bytes:
        """The end of the last line."""
        held, self._held = self._held, b""
        return held

    def _all_but_the_end(self, data: bytes) -> bytes:
        data = self._held + data
        self._held = data[-_END_BYTES:]
        return data[:-_END_BYTES]


_END_BYTES = len('"}\n')
"""Without these a line is no record."""


def line_of(record: Record) -> bytes:
    """A record's export line with its line feed."""
    return _line(export_line(SignedRecord(record.signed_text, record.hash, record.signature)))


def _line(text: str) -> bytes:
    return text.encode() + b"\n"
