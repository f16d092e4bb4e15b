"""Strict JSON: what comes in is read once, from raw bytes, by one rule.

RFC 8259 in UTF-8 without BOM, and in addition no duplicate keys (compared after unescaping), no NaN or
Infinity, no number that overflows a double, no integer of more than ``MAX_DIGITS`` digits, no U+0000 and no
lone surrogate in any string or key, a bounded depth, bounded strings, bounded objects and arrays.

Two ways lead to the same answer. The quick one decodes with msgspec, which is lax, and encodes the result
again: a text that equals its own re-encoding, white space and escapes aside, is well-formed and has no
duplicate key. Any doubt falls through to the thorough one, the scanner of the standard library with hooks.
Only when that one refuses does ``_Locator`` walk the text in Python, to name the place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import Any, NoReturn, TypeAlias, cast

import msgspec

from app.errors import InvalidJsonError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""What JSON can say, as Python says it."""

JsonObject: TypeAlias = "dict[str, JsonValue]"
"""A JSON object."""

MAX_DEPTH = 128
"""Nested arrays and objects in one document. Far below any interpreter's limit, so no version differs."""

MAX_DIGITS = 128
"""Decimal digits of an integer: enough for 400-bit numbers, too few to make ``int()`` a burden."""

MAX_STRING = 1024 * 1024
"""UTF-8 bytes of one string or key, after unescaping."""

MAX_MEMBERS = 100_000
"""Members of one object, or items of one array."""

MAX_VALUES = 50_000
"""Values of one document that comes in, all levels together: what is asked of one request at most.

Not a rule of the format: a record may hold what came in more than once, so records are read without it.
"""

RECORD_DEPTH = MAX_DEPTH + 16
"""Depth of a whole record: what came in may stand some levels down in its payload."""

RECORD_STRING = MAX_STRING + 64 * 1024
"""Bytes of one string in a record: a sentence of ours may be put before what came in."""

_MAX_LOCATED = 200_000
"""Tokens that are walked in Python to name a place: about a tenth of a second at most."""

_DIGIT_STRIDE = 16
_DIGITS = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))
_DIGIT_RUN = b"0" * ((MAX_DIGITS + 1) // _DIGIT_STRIDE)
"""Over every 16th byte: a run of more than 128 digits holds at least 8 of these bytes in a row."""
_LONG_RUN = b"0" * (MAX_DIGITS + 1)

_SOUND_ESCAPES = re.compile(
    r"(?:[^\\]++|\\(?:[^u]|u(?!0000|[dD][89a-fA-F])....|u[dD][89abAB]..\\u[dD][c-fC-F]..))*+", re.DOTALL
)
"""Of a well-formed text: matches up to the first escape that is U+0000 or a lone surrogate."""

_STRUCTURAL_ESCAPES = (b"\\u000", b"\\u001", b"\\u002", b"\\u005")
"""Beginnings of escapes that may mean a control character, a space, a quote or a backslash."""

_TOKEN = re.compile(
    r'[ \t\n\r]*(?:(?P<open>[\[{])|(?P<close>[\]}])|"(?P<string>(?:[^"\\]|\\.)*+)"'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|(?P<comma>,)|(?P<colon>:)|(?P<word>-?[A-Za-z]+))",
    re.DOTALL,
)

_CONTAINERS = (list, dict, tuple)
_ENCODER = msgspec.json.Encoder()
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
"""Also one that never ends: looking for its end again from each quote in it would take for ever."""

_STRETCH = re.compile(rb'(?:[^"]++|"(?:[^"\\]|\\.)*+"?){1,10000}+', re.DOTALL)
_EMPTY = re.compile(rb"\[[ \t\n\r]*\]|\{[ \t\n\r]*\}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


LARGE = 256
"""Members of an object that are sorted before msgspec's encoder does it; see ``sort_members``."""

_NESTING = frozenset({dict, list})


class Parsed(msgspec.Struct, frozen=True):
    """A document that was parsed strictly. Large objects in it are in the order of their keys.

    ``plain_numbers`` says that the C encoder spells every float in it as RFC 8785 does, so that its
    canonical text needs no walk in Python.
    """

    value: JsonValue
    plain_numbers: bool


class Doubled(dict[str, Any]):
    """An object in which a key stands twice, as lenient parsing leaves it; as a dict it has the last values.

    ``pairs`` is all that it says. Its type is not ``dict``: who asks for that by ``type`` cannot take it for
    a sound one.
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs

    @property
    def doubled(self) -> str:
        """The first key that stands a second time."""
        seen: set[str] = set()
        return next(key for key, _ in self.pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add says nothing


class _RefusedError(Exception):
    """A hook met something that strict JSON does not have; ``str`` is the reason."""


class _Floats:
    """Reads the floats of one document and remembers whether all are plain."""

    __slots__ = ("lenient", "plain")

    def __init__(self, *, lenient: bool = False) -> None:
        self.plain = True
        self.lenient = lenient

    def read(self, written: str) -> float:
        """The double nearest to what is written; a ``_RefusedError`` when it overflows, unless lenient."""
        value = float(written)
        if not math.isfinite(value) and not self.lenient:
            raise _RefusedError(_OVERFLOW)
        if self.plain:
            self.plain = is_plain(value)
        return value

    def read_respelt(self, written: str) -> float:
        """As ``read``, for a document that must equal its re-encoding: looks at the spelling alone."""
        if "e" in written or written.endswith(".0"):
            self.plain = False
        return float(written)


_OVERFLOW = "a number that overflows a double"
_LONG_INTEGER = f"an integer of more than {MAX_DIGITS} digits"
_TOO_DEEP = "nested deeper than {} levels"
_TOO_LONG = "a string of more than {} bytes"
_TOO_MANY = f"more than {MAX_MEMBERS} members in one object or array"
_TOO_MUCH = "more than {} values in one document"
_NUL = "the character U+0000, which cannot be stored"
_SURROGATE = "a lone surrogate"


def is_plain(value: float) -> bool:
    """Whether a finite float's shortest spelling is canonical as it stands: ``0.25`` is, ``1.0`` is not."""
    text = repr(value)
    return not text.endswith(".0") and "e" not in text


def parse(
    raw: bytes,
    *,
    max_depth: int = MAX_DEPTH,
    max_string: int = MAX_STRING,
    max_values: int | None = None,
    lenient: bool = False,
) -> Parsed:
    """Parses exactly one JSON document.

    Args:
        raw: the bytes as they came.
        max_depth: nested containers allowed; a scalar document has depth 0.
        max_string: UTF-8 bytes allowed in one string or key.
        max_values: values allowed in all, containers included and keys not; None for any number.
        lenient: for a caller who looks at each value itself. U+0000 and lone surrogates pass, numbers that
            overflow or are too long become infinities, objects with a key twice become ``Doubled``.

    Raises:
        InvalidJsonError: naming the place, as line and column or as a path such as ``$.a[3].k``.
    """
    if max_values is not None:
        _check_values(raw, max_values, max_depth, max_string, lenient=lenient)
    found = _quick(raw, max_depth, max_string)
    if found is None:
        found = _thorough(raw, max_depth, max_string, lenient=lenient)
    if raw.count(b":") > LARGE:  # most documents have fewer members, and are not looked through
        sort_members(found.value)
    return found


def _quick(raw: bytes, max_depth: int, max_string: int) -> Parsed | None:
    """The document when it equals its re-encoding and keeps every limit; None if in doubt."""
    try:
        decoded = _decoded(raw)
        if decoded is None:
            return None
        if not _says(raw, _ENCODER.encode(decoded.value)):
            return None
    except (ValueError, RecursionError):
        return None
    return decoded if _within(raw, decoded.value, max_depth, max_string) else None


def _says(raw: bytes, written: bytes) -> bool:
    """Whether a well-formed ``raw`` is the re-encoding of its value but for white space and escapes.

    Leaving these out of the comparison hides nothing: where a key stands twice the re-encoding has fewer
    tokens than the text, and where it has as many, each string of it is that of the text.
    """
    if written == raw:
        return True
    if len(written) >= len(raw):
        return False
    bare = msgspec.json.format(raw, indent=-1)
    return written == bare or (b"\\u" in bare and written == _unescaped(bare))


def _unescaped(raw: bytes) -> bytes:
    """ASCII with characters in the place of escapes that name their code; empty if one may mean structure.

    Raises:
        UnicodeError: a lone surrogate.
    """
    if not raw.isascii() or any(escape in raw for escape in _STRUCTURAL_ESCAPES):
        return b""
    text = raw.decode("raw_unicode_escape")  # which reads these escapes alone, and knows an escaped backslash
    if b"\\ud" in raw or b"\\uD" in raw:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")  # joins the pairs
    return text.encode()


def quick_as_it_stands(
    raw: bytes, encoder: msgspec.json.Encoder, max_depth: int, max_string: int
) -> Parsed | None:
    """The document when ``encoder`` writes it just so, its numbers are plain and it keeps every limit.

    None if in doubt.
    """
    if may_hide(raw):
        return None
    try:
        value = _PLAIN_DECODER.decode(raw)
        if encoder.encode(value) != raw:
            return None
    except (ValueError, RecursionError):
        return None
    return Parsed(value, plain_numbers=True) if _within(raw, value, max_depth, max_string) else None


def sort_members(value: JsonValue) -> None:
    """Puts the members of large objects within a value in the order of their keys, in place, at any depth.

    msgspec sorts members by quicksort: for some orders, which whoever sends a document may choose, that takes
    a time quadratic in their number, 10 s for 100,000. What is in order already it passes over.
    """
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if type(one) is dict:
            if len(one) > LARGE:
                members = sorted(one.items())
                one.clear()
                one.update(members)
            waiting.extend(member for member in one.values() if type(member) in _NESTING)
        elif type(one) is list:
            waiting.extend(item for item in one if type(item) in _NESTING)


def plain_float(written: str) -> float:
    """As ``_Floats.read_respelt``, for who has no use for other spellings; needs no object a document."""
    if "e" in written or written.endswith(".0"):
        raise ValueError(written)
    return float(written)


_PLAIN_DECODER = msgspec.json.Decoder(float_hook=plain_float)


def may_hide(raw: bytes) -> bool:
    """Whether there may be what a re-encoding would not show: U+0000 or an integer that is too long."""
    return has_long_digits(raw) or (b"\\" in raw and b"\\u0000" in raw)


def has_long_digits(raw: bytes) -> bool:
    """Whether more than ``MAX_DIGITS`` digits stand in a row, in a string or not.

    Every 16th byte nearly always says that none do; text in hexadecimal often leaves it open.
    """
    may_have = _DIGIT_RUN in raw[::_DIGIT_STRIDE].translate(_DIGITS)
    return may_have and _LONG_RUN in raw.translate(_DIGITS)


def _decoded(raw: bytes) -> Parsed | None:
    """What msgspec reads; None for U+0000 and long integers, which its re-encoding would not show.

    Infinities, duplicate keys and lone surrogates never survive a re-encoding; it is UTF-8 of one spelling.

    Raises:
        ValueError, RecursionError: as msgspec does.
    """
    if may_hide(raw):
        return None
    floats = _Floats()
    value = msgspec.json.Decoder(float_hook=floats.read_respelt).decode(raw)
    return Parsed(value, floats.plain)


def _within(raw: bytes, value: JsonValue, max_depth: int, max_string: int) -> bool:
    """Whether a document, given as text and as value, keeps the limits of depth, strings and members."""
    return plainly_within(raw, value, max_depth, max_string) or _excess(value, max_depth, max_string) is None


def _thorough(raw: bytes, max_depth: int, max_string: int, *, lenient: bool) -> Parsed:
    """The document by the scanner of the standard library with hooks, or the reason why not."""
    text = _decode(raw)
    floats = _Floats(lenient=lenient)
    decoder = json.JSONDecoder(
        object_pairs_hook=_object_or_doubled if lenient else _object,
        parse_int=_integer_or_infinity if lenient else _integer,
        parse_float=floats.read,
        parse_constant=_constant,
    )
    try:
        value = cast("JsonValue", decoder.decode(text))
    except json.JSONDecodeError as error:
        raise InvalidJsonError(_reason(error), f"line {error.lineno} column {error.colno}") from None
    except RecursionError:
        _refuse(text, _TOO_DEEP.format(max_depth), max_depth, max_string, lenient=lenient)
    except _RefusedError as error:
        _refuse(text, str(error), max_depth, max_string, lenient=lenient)
    if not lenient and "\\u" in text and _SOUND_ESCAPES.fullmatch(text) is None:
        _refuse(text, _SURROGATE, max_depth, max_string)
    if not plainly_within(raw, value, max_depth, max_string):
        excess = _excess(value, max_depth, max_string)
        if excess is not None:
            _refuse(text, excess, max_depth, max_string, lenient=lenient)
    return Parsed(value, floats.plain)


def _decode(raw: bytes) -> str:
    if raw.startswith(b"\xef\xbb\xbf"):
        raise InvalidJsonError("a byte order mark; send UTF-8 without one", "line 1 column 1")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJsonError("not UTF-8", f"byte {error.start}") from None


def _reason(error: json.JSONDecodeError) -> str:
    """The standard library's words, with a plain name for the most usual case."""
    return "an empty document" if not error.doc.strip(" \t\r\n") else f"not JSON: {error.msg}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RefusedError("duplicate key")
    return members


def _object_or_doubled(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else Doubled(pairs)


def _integer_or_infinity(token: str) -> int | float:
    digits = len(token) - token.startswith("-")
    return int(token) if digits <= MAX_DIGITS else math.copysign(math.inf, int(token[:2]))


def _integer(token: str) -> int:
    if len(token) - token.startswith("-") > MAX_DIGITS:
        raise _RefusedError(_LONG_INTEGER)
    return int(token)


def _constant(token: str) -> NoReturn:
    raise _RefusedError(f"{token}, which is not JSON")


def plainly_within(raw: bytes, value: JsonValue, max_depth: int, max_string: int) -> bool:
    """Whether little work shows that a document keeps the limits of depth, strings and members.

    Every level costs a bracket, every item but the first a comma, and no string is longer in UTF-8 than it is
    written. Where brackets are too many to tell, the value's containers are walked. False means only that one
    has to look.
    """
    return (
        len(raw) <= max_string
        and (len(raw) < 2 * MAX_MEMBERS or raw.count(b",") < MAX_MEMBERS)
        and (_has_few_brackets(raw, max_depth) or not _is_deeper(value, max_depth))
    )


def _has_few_brackets(raw: bytes, limit: int) -> bool:
    """Whether at most ``limit`` brackets open in a text; taking them out is quicker than counting them."""
    without = raw.replace(b"{", b"", limit + 1).replace(b"[", b"", limit + 1)
    return len(raw) - len(without) <= limit


def _is_deeper(value: JsonValue, max_depth: int) -> bool:
    """Whether more than ``max_depth`` containers stand in one another, looked for level by level."""
    level: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(max_depth):
        level = [item for container in level for item in _items(container) if isinstance(item, _CONTAINERS)]
        if not level:
            return False
    return bool(level)


def _check_values(raw: bytes, limit: int, max_depth: int, max_string: int, *, lenient: bool) -> None:
    """Refuses a document of more than ``limit`` values, told from its punctuation before it is parsed.

    There is the outermost value, one after each comma, and one after each bracket that opens, unless
    nothing is in it. What is not JSON may be told to have too many values, or be refused as what it is.
    """
    if len(raw) <= 2 * limit or _punctuation(raw) < limit:
        return
    commas = opened = empty = 0
    excess = InvalidJsonError(_TOO_MUCH.format(limit), "$")
    for stretch in _STRETCH.finditer(raw):
        bare = _STRING.sub(b"0", stretch[0])
        commas += bare.count(b",")
        if commas >= limit:
            raise excess
        opened += bare.count(b"[") + bare.count(b"{")
        if opened > limit:
            break  # of a document, at most one bracket more than commas is empty, so it has as many values
        empty += len(_EMPTY.findall(bare))
    if 1 + commas + opened - empty > limit:
        # Mostly brackets: the reason is rather that they nest too deep, at a place that can be named.
        raise _Locator(_decode(raw), max_depth, max_string, lenient=lenient).find() or excess


def _punctuation(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _excess(value: JsonValue, max_depth: int, max_string: int) -> str | None:
    """The limit that a parsed document passes, looked for level by level (no recursion); None if none."""
    level: list[JsonValue] = [value]
    for _ in range(max_depth + 1):
        for item in level:
            excess = _own_excess(item, max_string)
            if excess is not None:
                return excess
        containers = [item for item in level if isinstance(item, (list, dict))]
        if not containers:
            return None
        level = [item for container in containers for item in _items(container)]
    return _TOO_DEEP.format(max_depth)


def _items(container: list[JsonValue] | dict[str, JsonValue]) -> Collection[JsonValue]:
    return container.values() if isinstance(container, dict) else container


def _own_excess(value: JsonValue, max_string: int) -> str | None:
    """The limit that a value passes by itself, apart from what is in it."""
    if isinstance(value, str):
        return _TOO_LONG.format(max_string) if _longer(value, max_string) else None
    if not isinstance(value, (list, dict)):
        return None
    if len(value) > MAX_MEMBERS:
        return _TOO_MANY
    long_key = isinstance(value, dict) and any(_longer(key, max_string) for key in value)
    return _TOO_LONG.format(max_string) if long_key else None


def _longer(text: str, limit: int) -> bool:
    """Whether ``text`` is longer than ``limit`` bytes in UTF-8 (at most four bytes a character)."""
    return len(text) * 4 > limit and len(text.encode("utf-8", "surrogatepass")) > limit


def _refuse(text: str, reason: str, max_depth: int, max_string: int, *, lenient: bool = False) -> NoReturn:
    """Raises the refusal with its place, which is walked to only now."""
    found = _Locator(text, max_depth, max_string, lenient=lenient).find()
    if found is None:
        raise InvalidJsonError(reason, "a place that was not looked for")
    raise found


class _Frame:
    """An open container: where we are in it, and its keys so far."""

    __slots__ = ("count", "is_object", "key", "keys")

    def __init__(self, *, is_object: bool) -> None:
        self.is_object = is_object
        self.count = 0
        self.key: str | None = None
        self.keys: set[str] = set()

    def step(self) -> str:
        """The path step of the current member."""
        if not self.is_object:
            return f"[{self.count}]"
        if self.key is None:
            return ""
        if _WORD.fullmatch(self.key):
            return f".{self.key}"
        return f"[{json.dumps(self.key[:64])}]"


class _Locator:
    """Walks a text in Python to the first thing that strict JSON refuses, and names it."""

    def __init__(self, text: str, max_depth: int, max_string: int, *, lenient: bool = False) -> None:
        self.lenient = lenient
        self.text = text
        self.max_depth = max_depth
        self.max_string = max_string
        self.frames: list[_Frame] = []

    def find(self) -> InvalidJsonError | None:
        """The first fault, or None when none is found within the bound."""
        try:
            return self._walk()
        except (IndexError, ValueError):
            return None  # malformed behind the point where the scanner gave up

    def _walk(self) -> InvalidJsonError | None:
        position = 0
        for _ in range(_MAX_LOCATED):
            match = _TOKEN.match(self.text, position)
            if match is None:
                return None
            reason = self._take(match)
            if reason is not None:
                return InvalidJsonError(reason, self._place(match.start(match.lastgroup or 0)))
            position = match.end()
        return None

    def _take(self, match: re.Match[str]) -> str | None:
        """Moves on by one token; the reason when it is refused."""
        found = match[match.lastgroup or 0]
        match match.lastgroup:
            case "open":
                self.frames.append(_Frame(is_object=found == "{"))
                return _TOO_DEEP.format(self.max_depth) if len(self.frames) > self.max_depth else None
            case "close":
                self.frames.pop()
            case "comma":
                return self._comma()
            case "string":
                return self._string(found)
            case "number":
                return None if self.lenient else _number_fault(found)
            case "word" if found not in {"true", "false", "null"}:
                return f"{found}, which is not JSON"
        return None

    def _comma(self) -> str | None:
        frame = self.frames[-1]
        frame.key = None
        frame.count += 1
        return _TOO_MANY if frame.count >= MAX_MEMBERS else None

    def _string(self, token: str) -> str | None:
        frame = self.frames[-1] if self.frames else None
        value = cast("str", json.loads(f'"{token}"', strict=False))
        repeated = False
        if frame is not None and frame.is_object and frame.key is None:
            frame.key = value
            repeated = value in frame.keys
            frame.keys.add(value)
        if self.lenient:
            return None  # with max_string above its whole text
        if repeated:
            return f"duplicate key {json.dumps(value[:64])}"
        return _string_fault(value, self.max_string)

    def _place(self, position: int) -> str:
        """A path, line and column of the fault."""
        line = self.text.count("\n", 0, position) + 1
        column = position - self.text.rfind("\n", 0, position)
        path = "".join(frame.step() for frame in self.frames[-32:])
        dots = "…" if len(self.frames) > 32 else ""
        return f"${dots}{path} (line {line} column {column})"


def _string_fault(value: str, max_string: int) -> str | None:
    if "\0" in value:
        return _NUL
    if _longer(value, max_string):
        return _TOO_LONG.format(max_string)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return _SURROGATE
    return None


def _number_fault(token: str) -> str | None:
    if token.lstrip("-").isdigit():
        return _LONG_INTEGER if len(token.lstrip("-")) > MAX_DIGITS else None
    return None if math.isfinite(float(token)) else _OVERFLOW
