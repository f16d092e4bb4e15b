"""A tenant's list of rules: which built-in patterns and which paths are taken out."""

from __future__ import annotations

from typing import Final

import msgspec

from app.chain.strict import JsonObject, JsonValue
from app.errors import InvalidMemberError
from app.guard.fields import FieldError, integer
from app.redaction.names import MEANINGS
from app.redaction.paths import compile_paths

MAX_PATHS: Final = 100


class RuleList(msgspec.Struct, frozen=True):
    """What is redacted for a tenant.

    Attributes:
        version: 0 is the list that every tenant begins with; each change counts one up.
        patterns: names of built-in patterns.
        paths: JSONPaths of members, see ``app.redaction.paths``.
    """

    version: int
    patterns: tuple[str, ...]
    paths: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: JsonValue, version: int) -> RuleList:
        """Reads ``{patterns, paths}``; both are arrays of strings.

        Raises:
            InvalidMemberError: names the member.
        """
        if type(value) is not dict:
            raise InvalidMemberError("rules", 'must be an object such as {"patterns": [...], "paths": [...]}')
        unknown = next((name for name in value if name not in {"patterns", "paths"}), None)
        if unknown is not None:
            raise InvalidMemberError(unknown[:64], "is no member here; there are patterns and paths")
        patterns, paths = _texts(value, "patterns", len(MEANINGS)), _texts(value, "paths", MAX_PATHS)
        for name in patterns:
            if name not in MEANINGS:
                raise InvalidMemberError("patterns", f"there are {', '.join(MEANINGS)}")
        for index, path in enumerate(paths):
            try:
                compile_paths((path,))
            except ValueError as error:
                raise InvalidMemberError(f"paths[{index}]", str(error)) from error
        return cls(version, tuple(name for name in MEANINGS if name in patterns), tuple(dict.fromkeys(paths)))

    @classmethod
    def recorded(cls, value: JsonObject) -> RuleList:
        """Reads what ``to_json`` wrote; patterns of a later version are left out.

        Raises:
            FieldError: names the member.
        """
        version = integer(value, "version")
        try:
            known = [name for name in _texts(value, "patterns", MAX_PATHS) if name in MEANINGS]
            return cls.parse({"patterns": [*known], "paths": value.get("paths")}, version)
        except InvalidMemberError as error:
            raise FieldError("rules", str(error)) from error

    def to_json(self) -> JsonObject:
        """``{version, patterns, paths}``."""
        return {"version": self.version, "patterns": [*self.patterns], "paths": [*self.paths]}

    def described(self) -> JsonObject:
        """The same, and under ``available`` the built-in patterns with what they mean."""
        available: list[JsonValue] = [
            {"name": name, "meaning": meaning} for name, meaning in MEANINGS.items()
        ]
        return {**self.to_json(), "available": available}


def _texts(value: JsonObject, member: str, most: int) -> list[str]:
    items = value.get(member)
    if type(items) is not list or len(items) > most or not all(type(item) is str for item in items):
        raise InvalidMemberError(member, f"must be an array of at most {most} strings; it may be empty")
    return [item for item in items if isinstance(item, str)]


DEFAULT_RULES: Final = RuleList(0, tuple(name for name in MEANINGS if name != "card_numbers"))
"""What is redacted unless the tenant says otherwise: credentials. Card numbers look too much like ids."""
