"""Any Python value as JSON that the service takes, without ever failing or running for ever.

What an agent was called with and what it answered has to be on record, whatever it is. So nothing is refused
here, and what JSON cannot say is said in another way that a reader recognises:

===============================  ================================================================
value                            becomes
===============================  ================================================================
NaN, Infinity, -Infinity         the strings ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
an integer of > 128 digits       a string of its digits; above 4,000 digits hexadecimal, ``0x…``
Decimal, Fraction, complex       a string with all digits
datetime, date, time             ISO 8601; a datetime without a zone stays without one
timedelta                        ISO 8601, such as ``PT1.5S``
UUID, Path                       a string
bytes                            ``{"base64": "…"}``
array of numpy                   an array (its ``repr`` where it is too large)
set, deque, range, other         an array; sets are sorted where they can be
sequences
dataclass, msgspec Struct,       an object of its fields
attrs class, named tuple,
pydantic model
enum member                      its value
exception                        ``{"type": "…", "message": "…"}``
class, function                  its qualified name
anything else, iterators too     its ``repr``; iterators are not consumed
===============================  ================================================================

Text: U+0000 and lone surrogates, which the service refuses, and the escape character itself, U+241B ``␛``,
become ``␛`` and four hexadecimal digits. ``unescape`` gives the original back, for every string.

What is too large is cut, and says so: a string ends in ``…[cut: 5000000 characters in all]``, an array in
``…[1234 more not recorded]``, an object in a member ``…`` that says the same; what is nested too deeply or
contains itself is replaced by a marker that begins with ``…[``.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized, ValuesView
from collections.abc import Set as AbstractSet
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final
from uuid import UUID

import msgspec

from app.chain.strict import MAX_DIGITS, JsonValue

ESCAPE: Final = "\u241b"
"""Begins an escape in text: ``␛`` and four hexadecimal digits."""

MAX_NODE_BYTES: Final = 3 * 1024 * 1024
"""Encoded bytes of one node: with what is around it below the service's limit of 4 MiB for a body."""

MAX_REPR_BYTES: Final = 16 * 1024
"""Of the ``repr`` of an object that nothing else is known about."""

MORE: Final = "…"
"""The member of an object, and the begin of every other marker, that says what was not recorded."""

_NEEDS_ESCAPE = re.compile("[\0\ud800-\udfff\u241b]")
_ESCAPED = re.compile("\u241b([0-9a-f]{4})")
_HALF_ESCAPE = re.compile("\u241b[0-9a-f]{0,3}\\Z")
_PRINTABLE_DIGITS: Final = 4_000
"""Below the limit (4,300) up to which Python writes an integer in decimal."""

_INTEGER_LIMIT = 10**MAX_DIGITS
_PRINTABLE_LIMIT = 10**_PRINTABLE_DIGITS
_AS_IT_IS = frozenset({bool, type(None)})
_ENCODER = msgspec.json.Encoder()


class Limits(msgspec.Struct, frozen=True):
    """How much of one value is kept."""

    string_bytes: int = 1024 * 1024
    """UTF-8 bytes of one string, as the service counts them."""
    characters: int = 8 * 1024 * 1024
    """Of all strings and keys together: more than a node may have, and few enough to look at each."""
    values: int = 50_000
    """Values in all; the service takes 400,000 in one request."""
    depth: int = 100
    """Levels; the service takes 128, and a node stands some levels down in its request."""


STEPS: Final = (
    Limits(),
    Limits(string_bytes=64 * 1024, values=20_000),
    Limits(string_bytes=4 * 1024, values=2_000),
    Limits(string_bytes=256, values=200),
)
"""Tried in turn until a node is small enough; with the last one it always is."""


def json_value(value: object, limits: Limits = STEPS[0]) -> JsonValue:
    """``value`` as JSON. Never raises, whatever it is, and takes bounded time but for what ``repr`` takes."""
    return _Conversion(limits, text).convert(value, 0)


def fitted(node: dict[str, JsonValue]) -> bytes:
    """A node of JSON values as text of at most ``MAX_NODE_BYTES``, its members cut where it is larger."""
    encoded = _ENCODER.encode(node)
    for limits in STEPS[1:]:
        if len(encoded) <= MAX_NODE_BYTES:
            break
        smaller = {name: _Conversion(limits, cut).convert(member, 0) for name, member in node.items()}
        encoded = _ENCODER.encode(smaller)
    return encoded


def text(value: str, most_bytes: int) -> str:
    """Text that the service takes: escaped, and cut when it is longer than ``most_bytes`` in UTF-8."""
    # What is surely cut is not looked at: an escape never makes a text shorter.
    return cut(escape(value[: most_bytes + 1]), most_bytes, len(value))


def escape(value: str) -> str:
    """Text without U+0000 and lone surrogates: see the module's docstring."""
    if value.isascii() and "\0" not in value:
        return value
    return _NEEDS_ESCAPE.sub(lambda match: f"{ESCAPE}{ord(match[0]):04x}", value)


def unescape(value: str) -> str:
    """The text that ``escape`` was given."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)


def cut(value: str, most_bytes: int, characters: int | None = None) -> str:
    """Text of at most ``most_bytes`` in UTF-8; one that was cut says how many characters it had."""
    if len(value) * 4 <= most_bytes:
        return value
    encoded = value.encode()
    if len(encoded) <= most_bytes:
        return value
    mark = f"{MORE}[cut: {len(value) if characters is None else characters} characters in all]"
    kept = encoded[: max(0, most_bytes - len(mark.encode()))].decode("utf-8", "ignore")
    return _HALF_ESCAPE.sub("", kept) + mark


def qualified_name(kind: type) -> str:
    """``ValueError``, ``sqlite3.OperationalError``: with the module where it is not a built-in."""
    module = kind.__module__
    return kind.__qualname__ if module in {"builtins", "__main__"} else f"{module}.{kind.__qualname__}"


class _Conversion:
    """One value being converted: what is left of its limits, and the containers that it is inside of."""

    def __init__(self, limits: Limits, as_text: Callable[[str, int], str]) -> None:
        self._limits = limits
        self._as_text = as_text
        self._left = limits.values
        self._characters_left = limits.characters
        self._inside: set[int] = set()

    def convert(self, value: object, depth: int) -> JsonValue:
        """The value as JSON; a marker where it cannot be read."""
        self._left -= 1
        kind = type(value)
        if kind is str:
            return self._text(value)  # type: ignore[arg-type]  # as compared
        if kind in _AS_IT_IS:
            return value  # type: ignore[return-value]  # a bool or None
        try:
            if kind is int:
                return _integer(value)  # type: ignore[arg-type]  # as compared
            if kind is dict or kind is list:
                return self._container(value, depth)
            return self._scalar(value, depth)
        except Exception as error:  # noqa: BLE001  objects of others may raise anything
            return f"{MORE}[{kind.__name__} could not be recorded: {type(error).__name__}]"

    def _scalar(self, value: object, depth: int) -> JsonValue:  # noqa: PLR0911  a row of the table each
        match value:
            case enum.Enum():
                return self.convert(value.value, depth + 1) if depth < self._limits.depth else repr(value)
            case str():
                return self._text(str.__str__(value))
            case int():
                return _integer(int.__int__(value))
            case float():
                return _float(float.__float__(value))
            case dt.datetime() | dt.date() | dt.time():
                return value.isoformat()
            case dt.timedelta():
                return str(_ENCODER.encode(value), "ascii").strip('"')
            case UUID() | Decimal() | Fraction() | complex() | PurePath():
                return self._text(str(value))
            case bytes() | bytearray() | memoryview():
                return self._bytes(bytes(value))
            case type():
                return qualified_name(value)
        return self._container(value, depth)

    def _text(self, value: str, most: int | None = None) -> str:
        most = self._limits.string_bytes if most is None else min(most, self._limits.string_bytes)
        found = self._as_text(value, max(0, min(most, self._characters_left)))
        self._characters_left -= len(found)
        return found

    def _container(self, value: object, depth: int) -> JsonValue:
        if id(value) in self._inside:
            return f"{MORE}[{type(value).__name__} that contains itself]"
        if depth >= self._limits.depth:
            return f"{MORE}[{type(value).__name__} nested deeper than {self._limits.depth} levels]"
        self._inside.add(id(value))
        try:
            return self._members(value, depth + 1)
        finally:
            self._inside.discard(id(value))

    def _members(self, value: object, depth: int) -> JsonValue:  # noqa: PLR0911  as in _scalar
        if type(value) is dict:
            # Copied at once, since another thread may change it; one that is cut anyway is not copied.
            items = list(value.items()) if len(value) <= self._limits.values else value.items()
            return self._object(items, len(value), depth)
        fields = _fields(value)
        if fields is not None:
            return self._object(fields.items(), len(fields), depth)
        match value:
            case Mapping():
                return self._object(value.items(), _length(value), depth)
            case AbstractSet():
                return self._array(_ordered(value, self._left), _length(value), depth)
            case Sequence() | ValuesView() | deque():
                return self._array(value, _length(value), depth)
            case BaseException():
                return {"type": qualified_name(type(value)), "message": self._described(value, str)}
        return self._opaque(value, depth)

    def _opaque(self, value: object, depth: int) -> JsonValue:
        kind = type(value)
        if hasattr(kind, "tolist") and hasattr(kind, "dtype"):
            size = getattr(value, "size", None)
            if type(size) is int and size <= self._left:
                return self.convert(value.tolist(), depth)  # type: ignore[attr-defined]  # numpy's, as asked
        if isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
            return f"{value.__module__}.{value.__qualname__}"
        return self._described(value, repr)

    def _described(self, value: object, describe: Callable[[object], str]) -> str:
        try:
            return self._text(describe(value), MAX_REPR_BYTES)
        except Exception as error:  # noqa: BLE001  as in convert
            return f"{MORE}[{type(value).__name__} whose {describe.__name__} fails: {type(error).__name__}]"

    def _array(self, items: Iterable[object], length: int, depth: int) -> JsonValue:
        result: list[JsonValue] = []
        for item in self._bounded(items):
            if isinstance(item, _Stopped):
                result.append(item.said(length - len(result)))
                break
            result.append(self.convert(item, depth))
        return result

    def _object(self, items: Iterable[tuple[object, object]], length: int, depth: int) -> JsonValue:
        result: dict[str, JsonValue] = {}
        again: dict[str, int] = {}
        for item in self._bounded(items):
            if isinstance(item, _Stopped):
                result[_free(MORE, result, again)] = item.said(length - len(result))
                break
            key, member = item
            result[_free(self._key(key, depth), result, again)] = self.convert(member, depth)
        return result

    def _key(self, key: object, depth: int) -> str:
        if type(key) is str:
            return self._text(key)
        name = self.convert(key, depth)
        return name if isinstance(name, str) else str(_ENCODER.encode(name), "utf-8")

    def _bytes(self, value: bytes) -> JsonValue:
        most = max(0, min(self._limits.string_bytes, self._characters_left)) * 3 // 4
        encoded = base64.b64encode(value[:most]).decode()
        self._characters_left -= len(encoded)
        result: dict[str, JsonValue] = {"base64": encoded}
        if len(value) > most:
            result[MORE] = f"{MORE}[cut: {len(value)} bytes in all]"
        return result

    def _bounded(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items until there have been too many, or they cannot be read; then a ``_Stopped``."""
        try:
            for item in items:
                if self._left <= 0:
                    yield _Stopped()
                    return
                yield item
        except Exception as error:  # noqa: BLE001  as in convert
            yield _Stopped(type(error).__name__)


class _Stopped(msgspec.Struct, frozen=True):
    """Why the rest of a container is not recorded."""

    error: str | None = None

    def said(self, rest: int) -> str:
        because = "" if self.error is None else f": {self.error}"
        return f"{MORE}[{rest if rest > 0 else 'some'} more not recorded{because}]"


def _free(name: str, taken: Mapping[str, object], again: dict[str, int]) -> str:
    """A name that is not taken: 1 and "1" are two keys to Python, and both are recorded."""
    free = name
    while free in taken:
        again[name] = again.get(name, 1) + 1
        free = f"{name} ({again[name]})"
    return free


def _length(value: Sized) -> int:
    """The length as far as it can be told; 0 else."""
    try:
        return len(value)
    except Exception:  # noqa: BLE001  as in convert
        return 0


def _integer(value: int) -> JsonValue:
    if -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
        return value
    return str(value) if -_PRINTABLE_LIMIT < value < _PRINTABLE_LIMIT else hex(value)


def _float(value: float) -> JsonValue:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _fields(value: object) -> dict[str, object] | None:
    """The fields of an instance of a class that declares them; None when it is no such thing."""
    kind: Any = type(value)
    names: Iterable[str]
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif isinstance(value, msgspec.Struct):
        names = kind.__struct_fields__
    elif isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        names = kind._fields
    elif hasattr(kind, "__attrs_attrs__"):
        names = [field.name for field in kind.__attrs_attrs__]
    elif callable(getattr(kind, "model_dump", None)):
        return _dumped(value)
    else:
        return None
    found = {name: getattr(value, name, None) for name in names}
    return {name: member for name, member in found.items() if member is not msgspec.UNSET}


def _dumped(value: Any) -> dict[str, object] | None:  # noqa: ANN401  a pydantic model, or the like
    try:
        found = value.model_dump()
    except Exception:  # noqa: BLE001  a serializer of others
        found = dict(vars(value))
    return found if isinstance(found, dict) else None


def _ordered(value: AbstractSet[Any], most: int) -> Iterable[object]:
    """A set in an order that is the same each time, where its members have one."""
    if len(value) > most:
        return value
    try:
        return sorted(value)
    except Exception:  # noqa: BLE001  members of two types, or without an order
        return value
