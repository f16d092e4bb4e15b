"""An export as Parquet: for data frames and warehouses, with types, and no evidence.

Row groups are bounded, so that neither who writes nor who reads needs memory for all of it. The statement
stands in the file's metadata under ``lineage-export-v1``, in its footer: a file that was broken off has none
and cannot be opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from app.chain.statement import FORM
from app.errors import BadRequestError
from app.ledger.export.sink import Sink
from app.ledger.export.told import EVIDENCE, Sums, Told
from app.ledger.export.writers import Columns, Writer

if TYPE_CHECKING:
    from app.chain.strict import JsonObject

GROUP_ROWS: Final = 5_000
GROUP_CHARS: Final = 4 * 1024 * 1024
"""Rows and text of one row group, and one piece more."""

_MISSING: Final = (
    "format: Parquet needs the package pyarrow, which is not installed with this service; CSV and JSON lines "
    "need nothing"
)
_ARRAY: Final = re.compile(r"(.*)\[\]")
"""The type of an array of one dimension, of which the group is the elements'."""

_MICROSECOND: Final = timedelta(microseconds=1)


class Parquet(Writer):
    """Rows as Parquet, compressed with zstd.

    Raises:
        BadRequestError: pyarrow is not installed.
    """

    def __init__(self, told: Told, columns: Columns) -> None:
        super().__init__(told, columns)
        try:
            # Large, and only who wants this form needs it.
            pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ImportError:
            raise BadRequestError(_MISSING) from None
        self._pyarrow: Any = pyarrow
        self._schema = pyarrow.schema([(name, _type(pyarrow, type_)) for name, type_ in columns])
        self._sink = Sink()
        self._kept: list[Sequence[Any]] = []
        self._chars = 0
        self._writer: Any = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")

    def begin(self) -> bytes:
        """The file's first bytes."""
        return self._sink.taken()

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Rows; they are kept until a group of them is written."""
        self._kept.extend(rows)
        self._chars += sum(len(value) for row in rows for value in row if isinstance(value, str))
        if len(self._kept) >= GROUP_ROWS or self._chars >= GROUP_CHARS:
            self._write()
        return self._sink.taken()

    def close(self) -> bytes:
        """The last group."""
        if self._kept:
            self._write()
        return self._sink.taken()

    def says(self, sums: Sums) -> JsonObject:
        """As all, and that this is a copy."""
        return {**super().says(sums), "evidence": EVIDENCE}

    def end(self, statement: str) -> bytes:
        """The footer."""
        self._writer.add_key_value_metadata({FORM: statement})
        self._writer.close()
        return self._sink.taken()

    def _write(self) -> None:
        columns = [
            self._pyarrow.array([_value(type_)(row[number]) for row in self._kept], type=field.type)
            for number, ((_, type_), field) in enumerate(zip(self.columns, self._schema, strict=True))
        ]
        self._writer.write_table(self._pyarrow.table(columns, schema=self._schema))
        self._kept, self._chars = [], 0


def _type(pyarrow: Any, type_: str) -> Any:  # noqa: ANN401  the package, and a type of it
    """The Arrow type of a PostgreSQL type; what has none of the same values is text."""
    if (of := _ARRAY.fullmatch(type_)) is not None:
        return pyarrow.list_(_type(pyarrow, of[1]))
    makers: dict[str, Callable[[], Any]] = {
        "timestamp with time zone": lambda: pyarrow.timestamp("us", tz="UTC"),
        "bigint": pyarrow.int64,
        "integer": pyarrow.int32,
        "smallint": pyarrow.int16,
        "boolean": pyarrow.bool_,
        "double precision": pyarrow.float64,
        "date": pyarrow.date32,
        "interval": lambda: pyarrow.duration("us"),
    }
    return makers.get(type_, pyarrow.string)()


def _value(type_: str) -> Callable[[Any], Any]:
    """What makes a column's value one of its Arrow type: NUMERIC and UUID are text, with all digits."""
    if (of := _ARRAY.fullmatch(type_)) is not None:
        element = _value(of[1])
        return lambda value: None if value is None else [element(one) for one in value]
    if type_ == "numeric":
        return lambda value: None if value is None else format(value, "f")
    if type_ == "uuid":
        return lambda value: str(value) if isinstance(value, UUID) else value
    if type_ == "interval":
        return lambda value: None if value is None else value // _MICROSECOND
    return lambda value: value
