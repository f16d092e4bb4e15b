r"""Built-in patterns: what secrets look like, in members of objects and within text.

Texts are what agents choose, so they are searched by RE2, whose time is bounded by their length whatever they
hold (https://github.com/google/re2). One search over all patterns says that a text holds nothing, which is
what most hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

import msgspec
import re2  # type: ignore[import-untyped]  # it comes without types

from app.chain.strict import JsonObject, JsonValue

VERSION: Final = 1
"""Of the built-in patterns: records name it, beside the version of the tenant's list."""

MARK: Final = "[REDACTED]"
"""What stands where a secret stood."""

_MARK: Final = MARK.encode()

_ENDINGS: Final = (
    r"passw(?:or)?ds?|passphrase|passcode|secrets?(?:[_-]?(?:access[_-]?)?key)?|api[_-]?(?:keys?|token|secret)"
    r"|(?:private|access|account|encryption|signing|subscription)[_-]?key"
    r"|(?:access|refresh|auth|session|bearer|id|bot|csrf|xsrf|security|oauth|user|private|vault|github|gitlab|gh"
    r"|slack|npm|pypi|hf|deploy|webhook|personal)[_-]?token"
)
"""Ends of names of members that hold secrets: ``db_password``, ``clientSecret``, ``HF_TOKEN``."""

_WHOLE: Final = r"(?:proxy-)?authorization|(?:set-)?cookie|pwd|token|credentials|jwt"
"""Names that say so as a whole only: ``next_page_token`` is no secret."""

_PREFIX: Final = r"(?:.*[.]|x-|http_)?"
"""What may stand before a name of these: ``http.request.header.cookie``, ``HTTP_AUTHORIZATION``."""

_SPACE: Final = r"(?:\s|\\[bfnrt])"
"""White space in a text, or as JSON escapes it: hints are looked for in both."""

_SCHEMA_TYPES: Final = ("string", "number", "integer", "object", "array", "boolean", "null")
_VERB: Final = re.compile(
    r"(?:[Uu]pdate|[Rr]eset|[Cc]hange|[Ff]orgot|[Vv]erify|[Cc]heck|[Vv]alidate|[Rr]otate|[Gg]enerate|[Cc]reate"
    r"|[Dd]elete|[Ll]ist|[Gg]et|[Ss]et|[Hh]as|[Ii]s|[Nn]eeds?|[Rr]equires?|[Ii]nvalid|[Mm]issing)(?:[_-]|(?=[A-Z]))"
)
"""How the name of a tool or of a fact begins: ``update_password`` is none, in an object of tools."""

_SECRET_NAME: Final = re2.compile(
    rf"(?is)(?:.*(?:{_ENDINGS})|{_PREFIX}({_WHOLE}|cookies|(?:aws|client)_credentials))"
)

Span = tuple[int, int]
"""Where in a text (UTF-8) something stands that is to be taken out."""

Find = Callable[[bytes, int], Iterator[Span]]
"""Finds secrets in a text, a given number at most. Raises ``TooManyError``."""


class TooManyError(Exception):
    """A text holds more of what looks like secrets than anybody will look at one by one."""


class Pattern(msgspec.Struct, frozen=True):
    """One built-in kind of secret.

    Attributes:
        name: as it stands in a tenant's list; ``app.redaction.names`` says what it means.
        hint: an RE2 expression; a text in which it is not found holds none.
        find: the places of all secrets of this kind, in order.
    """

    name: str
    hint: str
    find: Find

    def scrub(self, text: bytes, most: int) -> tuple[bytes, int]:
        """A text without secrets of this kind, and how many were found; the very object when none was.

        With more than ``most`` of them the mark stands for the whole text: looking has its price.
        """
        parts: list[bytes] = []
        done = found = 0
        try:
            for start, end in self.find(text, most):
                found += 1
                if start < done:  # it overlaps with the one before, whose mark stands for both
                    done = max(done, end)
                elif not text.startswith(_MARK, start):
                    parts += [text[done:start], _MARK]
                    done = end
        except TooManyError:
            return _MARK, most
        return b"".join([*parts, text[done:]]) if parts else text, found


def holds_secret(name: str, value: JsonValue) -> bool:
    """Whether a member is one that ``secret_members`` takes out: by its name, and not by its value.

    A number called ``token`` or ``secrets`` counts something, and what describes a member in a JSON Schema
    is not it.
    """
    if not _is_secret_name(name):
        return False
    if type(value) is dict:
        return value.get("type") not in _SCHEMA_TYPES
    return type(value) not in {int, float} or not name.lower().endswith(("token", "s"))


_NAMES: Final = ("name", "key", "Name", "Key")
_VALUES: Final = frozenset({"value", "Value"})


def is_pair(member: str, of: JsonObject) -> bool:
    """Whether a member is the value of a name beside it, and the name says that it is a secret.

    So headers, variables and form fields are listed: ``{"name": "Authorization", "value": "…"}``.
    """
    if member not in _VALUES:
        return False
    return any(type(name) is str and holds_secret(name, of[member]) for name in map(of.get, _NAMES))


MAX_KNOWN_CHARS: Final = 128
"""Longest name that is remembered: names are what agents choose, and there are many."""


def _is_secret_name(name: str) -> bool:
    return _is_known_as_secret(name) if len(name) <= MAX_KNOWN_CHARS else _says_secret(name)


def _says_secret(name: str) -> bool:
    match = _SECRET_NAME.fullmatch(name)
    return match is not None and (match[1] is not None or _VERB.match(name) is None)


_is_known_as_secret: Final = lru_cache(maxsize=8_192)(_says_secret)


# --- members that are spelled out in text -------------------------------------------------------------

_NAME: Final = rf"(?:{_ENDINGS}|(?:^|[^\w-])(?:{_WHOLE}))"
_QUOTED: Final = re2.compile(
    rf"(?i){_NAME}\\*[\"'](?:\s{{0,8}}(?::|\]\s{{0,4}}=|=>)|\s{{1,4}}value=)\s{{0,8}}"
    rf"(?:(\\*[\"'])|(-?[0-9][0-9.eE+-]*))".encode()
)
_ASSIGNED: Final = re2.compile(
    rf"(?i){_NAME}\s{{0,16}}(?::?=|=>|%3D)\s{{0,4}}(?:(\\*[\"'])|([^\s\"'&;,<>=\\][^\s\"'&;,<>\\]*))".encode()
)
_HEADER: Final = re2.compile(
    rb"(?i)(?:^|[^\w-])(?:(?:set-)?cookie\s{0,4}:\s{0,4}([^\s=;\"']{1,256}=[^\r\n\"'\\]*)"
    rb"|authorization\s{0,4}:\s{0,16}(?:bearer|basic|digest|token|negotiate|apikey|key)\s{1,16}"
    rb"([^\s\"',\\]+)|(?:x-[a-z-]{0,32}(?:api-key|token)|private-token|api-?key)\s{0,4}:\s{0,4}([^\s\"',\\]+))"
)
_SAID: Final = "password|passphrase|passcode|api[ _-]?key|secret|token"
_PROSE: Final = re2.compile(
    rf"(?i)(?:(?:{_SAID})\s{{1,4}}(?:(?:is|was|to|with)\s{{1,4}})?:?\s{{0,4}}|{_NAME}:\s{{0,8}})".encode()
    + rb"\\*[\"'`]([^\s\"'`\\]{4,256})\\*[\"'`]"
)
"""The password is 'x', change it to "x", password: 'x': a word in quotes right behind."""

_PLAIN: Final = re2.compile(
    rf"(?i)(?:{_NAME}:[\t ]{{1,8}}|(?:^|[^\w-])authorization:\s{{0,4}}"
    rf"|(?:password|passphrase|passcode)\s(?:is|was):?\s"
    rf"|--(?:[a-z-]{{0,32}}-)?(?:{_ENDINGS}|token|pwd)\s)([^\s\"'`\\,;()<>{{}}\[\]|$%]{{4,}})".encode()
)
"""password: x9 in YAML, in a header and behind an option: bare words, see ``_is_secret_word``."""

_CURL: Final = re2.compile(
    rb"(?i)\bcurl\b[^\r\n|;]*?\s(?:-u|--user|--proxy-user)(?:\s{1,4}|=)\\*[\"']?[^\s:\"'\\]+:([^\s\"'\\]+)"
)

_TAGGED: Final = re2.compile(rf"(?i)<(?:[\w.:-]*(?:{_ENDINGS})|{_WHOLE})>([^<]+)</".encode())


def _is_secret_word(word: bytes) -> bool:
    """Whether a bare word is more than one of a sentence or a type: it has a digit, and more than digits."""
    return _MARK not in word and (len(word) > 24 or _SECRET_WORD.fullmatch(word) is not None)


_SECRET_WORD: Final = re.compile(
    rb"(?i)(?!(?:base\d+|sha-?\d+|md5|utf-?\d+|oauth2?|[a-z]+(?:8|16|32|64|128|256))$)(?=.*\d)(?=.*\D).{5,}"
)


def _members(text: bytes, most: int) -> Iterator[Span]:
    """``"password": "…"`` at any depth of escaping, ``PASSWORD=…`` and header lines."""
    found: list[Span] = []
    for expression in (_QUOTED, _ASSIGNED):
        for match in _bounded(expression.finditer(text), most):
            opened = match[1]
            if opened is None and _is_code(match):
                continue
            found.append(
                match.span(2) if opened is None else (match.end(), _closing(text, match.end(), opened))
            )
    for expression in (_HEADER, _PROSE, _TAGGED, _CURL):
        found += [match.span(match.lastindex or 0) for match in _bounded(expression.finditer(text), most)]
    found += [match.span(1) for match in _bounded(_PLAIN.finditer(text), most) if _is_secret_word(match[1])]
    return iter(sorted(found))


def _is_code(match: re.Match[bytes]) -> bool:
    """Whether a bare value is a name of a program's: ``password=password``, ``token = next_one()``."""
    value = match[2].rstrip(b"):]}").lower()
    return _CODE.fullmatch(value) is not None or match[0].lower().startswith(value)


_CODE: Final = re2.compile(
    rf"none|true|false|null|nil|undefined|\$\{{?\w+|(?:self|this|cls)\.[\w.]+|[a-z_.]+\(.*"
    rf"|(?:[a-z]+[_.])+(?:{_ENDINGS}|{_WHOLE})".encode()
)


def _closing(text: bytes, start: int, opened: bytes) -> int:
    """Where the string that ``opened`` began ends: at the quote that no more backslashes stand before."""
    quote, escapes = opened[-1:], len(opened) - 1
    at = text.find(quote, start)
    while at >= 0:
        before = text[max(start, at - escapes - 1) : at]
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes <= escapes:
            return at - backslashes
        at = text.find(quote, at + 1)
    return len(text)


def _bounded(matches: Iterator[re.Match[bytes]], most: int) -> Iterator[re.Match[bytes]]:
    for number, match in enumerate(matches):
        if number >= most:
            raise TooManyError
        yield match


# --- secrets that say what they are ----------------------------------------------------------------------


def _all_of(*expressions: str, is_one: Callable[[bytes], bool] | None = None) -> Find:
    """Finds what the group of one of the expressions matches."""
    compiled = [re2.compile(expression.encode()) for expression in expressions]

    def find(text: bytes, most: int) -> Iterator[Span]:
        spans = [match.span(1) for one in compiled for match in _bounded(one.finditer(text), most)]
        return iter(sorted(span for span in spans if is_one is None or is_one(text[slice(*span)])))

    return find


def _is_token(text: bytes) -> bool:
    """Whether what stands behind Bearer or Basic is more than the next word of a sentence."""
    return _MARK not in text and (len(text) > 24 or any(char in b"0123456789=" for char in text))


def _has_check_digit(text: bytes) -> bool:
    """Whether the digits in ``text`` have a card number's check digit (ISO/IEC 7812-1, annex B)."""
    digits = [char - 48 for char in text if 48 <= char < 58]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


_TOKENS: Final = (
    r"\b(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{2,}(?:\.[A-Za-z0-9_-]*)?)",
    r"(trk_[0-9a-f]{32}\.[0-9a-f]{16}\.[A-Za-z0-9_-]{43}(?:\.[0-9a-f]{16})?)",
    r"(agt_[0-9a-f]{32}\.[A-Za-z0-9_-]{1,64}\.[0-9a-f]{16,128})",
)
_CLOUD: Final = (
    r"\b((?:AKIA|ASIA)[A-Z0-9]{16})\b",
    r"\b(AIza[A-Za-z0-9_-]{35})",
    r"\b(ya29\.[A-Za-z0-9_-]{20,})",
    r"(?i)AccountKey=([A-Za-z0-9+/]{20,}={0,2})",
    r"(?i)SharedAccessSignature=([^\s;\"']{8,})",
    r"\b(gh[pousr]_[A-Za-z0-9]{20,})",
    r"\b(github_pat_[A-Za-z0-9_]{20,})",
    r"\b(glpat-[A-Za-z0-9_-]{16,})",
    r"\b((?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,})",
    r"\b((?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9]{10,})",
    r"\b(sk-[A-Za-z0-9_-]*[0-9][A-Za-z0-9_-]{16,})",
    r"\b((?:hf|npm)_[A-Za-z0-9]{30,})",
    r"\b(pypi-[A-Za-z0-9_-]{30,})",
    r"\b((?:dckr_pat|gsk|dop_v1|shpat|lin_api|r8)_[A-Za-z0-9_-]{24,})",
    r"\b((?:xai|tvly|pplx)-[A-Za-z0-9_-]{24,})",
    r"(?i)[?&](?:sig|X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature)=([A-Za-z0-9%+/=_.-]{16,})",
    r"\b(SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,})",
)
_bearer: Final = _all_of(
    r"(?i)\bbearer(?:\s{1,16}|\s{0,2}[:=]\s{0,4})([^\s\"',;<>\\]+)",
    r"(?i)\bbasic\s{1,16}([A-Za-z0-9+/]{8,}={0,2})",
    is_one=_is_token,
)
_tokens: Final = _all_of(*_TOKENS)


def _bearer_tokens(text: bytes, most: int) -> Iterator[Span]:
    return iter(sorted([*_bearer(text, most), *_tokens(text, most)]))


SECRET_MEMBERS: Final = Pattern(
    "secret_members",
    rf"(?:{_ENDINGS}|{_WHOLE}|cookies)(?:\\*[\"']|{_SPACE}{{0,16}}(?:[:=]|%3D)|>|{_SPACE}(?:is|was))"
    rf"|x-[a-z-]{{0,32}}(?:api-key|token){_SPACE}{{0,4}}:|(?:private-token|api-?key){_SPACE}{{0,4}}:"
    rf"|--(?:[a-z-]{{0,32}}-)?(?:{_ENDINGS}|token|pwd){_SPACE}|curl"
    rf"|(?:{_SAID}){_SPACE}{{1,4}}(?:(?:is|was|to|with){_SPACE}{{1,4}})?:?{_SPACE}{{0,4}}"
    rf"\\*[\"'`][^\s\"'`\\]{{4}}",
    _members,
)

BEARER_TOKENS: Final = Pattern(
    "bearer_tokens",
    rf"(?:bearer|basic)(?:{_SPACE}|[:=])|eyJ[A-Za-z0-9_-]{{8}}|trk_[0-9a-f]{{32}}|agt_[0-9a-f]{{32}}",
    _bearer_tokens,
)

CLOUD_KEYS: Final = Pattern(
    "cloud_keys",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20}|AccountKey=|SharedAccessSignature="
    r"|gh[pousr]_[A-Za-z0-9]{20}|github_pat_|glpat-|(?:xox[abeoprs]|xapp)-|[sr]k_(?:live|test)_|whsec_"
    r"|(?:dckr_pat|gsk|dop_v1|shpat|lin_api|r8)_[A-Za-z0-9_-]{24}|(?:xai|tvly|pplx)-[A-Za-z0-9_-]{24}"
    r"|[?&](?:sig|X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature)="
    r"|sk-[A-Za-z0-9_-]{16}|(?:hf|npm)_[A-Za-z0-9]{30}|pypi-[A-Za-z0-9_-]{30}|SG\.[A-Za-z0-9_-]{16}",
    _all_of(*_CLOUD),
)

PRIVATE_KEYS: Final = Pattern(
    "private_keys",
    "PRIVATE KEY",
    _all_of(
        r"(?s)(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{1,60}-----|$))"
    ),
)

URL_PASSWORDS: Final = Pattern(
    "url_passwords",
    r"://[^\s/:@\"'<>]{0,256}:[^\s/\"'<>]+@",
    _all_of(r"://[^\s/:@\"'<>]{0,256}:([^\s/\"'<>]+)@"),
)

CARD_NUMBERS: Final = Pattern(
    "card_numbers",
    r"[0-9](?:[ -]?[0-9]){12}",
    _all_of(r"(?:^|[^\w.])([0-9](?:[ -]?[0-9]){12,18})\b", is_one=_has_check_digit),
)

BUILT_IN: Final = {
    pattern.name: pattern
    for pattern in (SECRET_MEMBERS, BEARER_TOKENS, CLOUD_KEYS, PRIVATE_KEYS, URL_PASSWORDS, CARD_NUMBERS)
}
"""All of ``app.redaction.names`` in the same order."""


def gate(patterns: list[Pattern]) -> Callable[[bytes], object] | None:
    """One search for several patterns: None for a text (UTF-8) that holds nothing for any of them."""
    if not patterns:
        return None
    search: Callable[[bytes], object] = re2.compile(
        f"(?i){'|'.join(pattern.hint for pattern in patterns)}".encode()
    ).search
    return search
