"""The auditors' cookbook: named, explained queries in ``db/queries/*.sql``, with parameters.

A file begins with a comment in one form: the question; ``Parameters:`` with name, type, default and meaning
a line (``-`` is none: the parameter is NULL); ``Columns:`` with name and meaning. The statement names a
parameter as ``:name``; here it becomes ``$1``, ``$2`` … and its value goes to the server apart from the text.
Whoever copies a query gets it with literals instead, which any SQL tool runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

_DIRECTORY: Final = Path(__file__).parent / "queries"
_COLUMN_GAP: Final = re.compile(r" {2,}")
_MARKER: Final = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_CAST_MARKER: Final = re.compile(_MARKER.pattern + r"(?:::[a-z]+)?")
"""A parameter with the cast that may follow it."""
_NONE: Final = "-"

TYPES: Final = frozenset({"timestamptz", "text", "uuid", "integer", "numeric"})
"""PostgreSQL types that a parameter may have."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter: its name, PostgreSQL type, default as text (None: NULL) and meaning."""

    name: str
    type: str
    default: str | None
    meaning: str


class Column(msgspec.Struct, frozen=True):
    """One column of the answer."""

    name: str
    meaning: str


class Recipe(msgspec.Struct, frozen=True):
    """One query of the cookbook.

    Attributes:
        name: the file's name without its ending.
        question: what it answers, in one sentence.
        notes: what else there is to know; may be empty.
        parameters: in the order of the file.
        columns: in the order of the answer.
        text: the whole file.
        statement: its SQL with ``$1`` … for the parameters, in their order.
    """

    name: str
    question: str
    notes: str
    parameters: tuple[Parameter, ...]
    columns: tuple[Column, ...]
    text: str
    statement: str

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of this name."""
        return next((found for found in self.parameters if found.name == name), None)

    @property
    def comment(self) -> str:
        """The comment that the file begins with."""
        return "".join(line for line in self.text.splitlines(keepends=True) if line.startswith("--"))

    def with_literals(self, literals: Mapping[str, str]) -> str:
        """The statement as SQL that needs no parameters.

        Args:
            literals: of each parameter its SQL expression, of the parameter's type (see ``literal``).
        """
        body = self.text[len(self.comment) :].strip()
        return _CAST_MARKER.sub(lambda marker: literals[marker[1]], body)


def literal(type_: str, value: str | None) -> str:
    """A value as an SQL literal of its PostgreSQL type; None is NULL.

    What is not plain ASCII or could steer a terminal is written as escapes, which mean the same whatever
    ``standard_conforming_strings`` and the client's encoding are.
    """
    if value is None:
        return f"NULL::{type_}"
    quoted = value.replace("'", "''")
    if value.isascii() and value.isprintable() and "\\" not in value:
        return f"'{quoted}'::{type_}"
    return f"E'{''.join(map(_escaped, quoted))}'::{type_}"


def _escaped(char: str) -> str:
    if char == "\\":
        return "\\\\"
    code = ord(char)
    return char if " " <= char <= "~" else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


@cache
def recipes() -> Mapping[str, Recipe]:
    """All queries by name, in alphabetical order.

    Raises:
        ValueError: a file is not in the one form; says which and why.
    """
    files = sorted(_DIRECTORY.glob("*.sql"))
    return MappingProxyType({file.stem: read_recipe(file.stem, file.read_text("utf-8")) for file in files})


def read_recipe(name: str, text: str) -> Recipe:
    """Reads the text of one file.

    Raises:
        ValueError: it is not in the one form.
    """
    lines = text.splitlines()
    head = [line for line in lines if line.startswith("--")]
    body = "\n".join(lines[len(head) :]).strip().removesuffix(";")
    paragraphs = _paragraphs(head)
    question, notes = " ".join(paragraphs[0]), ""
    parameters: tuple[Parameter, ...] = ()
    columns: tuple[Column, ...] = ()
    for paragraph in paragraphs[1:]:
        if paragraph[0] == "Parameters:":
            parameters = tuple(_parameter(name, line) for line in paragraph[1:])
        elif paragraph[0] == "Columns:":
            columns = tuple(Column(*_fields(name, line, 2)) for line in paragraph[1:])
        else:
            notes = " ".join(paragraph)
    numbers = {parameter.name: number for number, parameter in enumerate(parameters, 1)}
    if set(_MARKER.findall(body)) != numbers.keys():
        raise ValueError(f"{name}.sql: the parameters of the statement are not those that are explained")
    statement = _MARKER.sub(lambda marker: f"${numbers[marker[1]]}", body)
    return Recipe(name, question, notes, parameters, columns, text, statement)


def _paragraphs(head: list[str]) -> list[list[str]]:
    """The comment's paragraphs, each a list of its lines without the dashes."""
    found: list[list[str]] = [[]]
    for line in head:
        words = line.removeprefix("--").strip()
        if words:
            found[-1].append(words)
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def _parameter(name: str, line: str) -> Parameter:
    parameter, type_, default, meaning = _fields(name, line, 4)
    if type_ not in TYPES:
        raise ValueError(f"{name}.sql: {parameter} is of a type that is not known here: {type_}")
    return Parameter(parameter, type_, None if default == _NONE else default, meaning)


def _fields(name: str, line: str, count: int) -> list[str]:
    fields = _COLUMN_GAP.split(line, maxsplit=count - 1)
    if len(fields) != count:
        raise ValueError(f"{name}.sql: not {count} columns: {line}")
    return fields
