"""Parameters of ``trails query``: from ``NAME=VALUE`` to values of the type that the query says.

Nothing of them is ever put into SQL text; what is not of the type is refused before the database is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Final
from uuid import UUID

import click

from app.moment import from_microseconds
from app.trace.instant import parse_day_or_instant
from app.trace.node import is_uuid
from db.cookbook import Parameter, Recipe, literal

_AGO: Final = re.compile(r"([0-9]{1,5})([mhd])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_INTEGER: Final = re.compile(r"[0-9]{1,10}")
_MAX_INTEGER: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")

_OPTION: Final = "--param"


def read_values(recipe: Recipe, given: Sequence[str], now: datetime) -> list[object]:
    """The values of all parameters of ``recipe``, in its order: those that are given, else the defaults.

    Args:
        recipe: the query.
        given: ``NAME=VALUE`` of the command line.
        now: what times such as ``7d`` count back from.

    Raises:
        click.UsageError: an unknown, repeated or malformed parameter; says which there are.
    """
    texts = _texts(recipe, given)
    return [_value(parameter, texts, now) for parameter in recipe.parameters]


def sql_literals(recipe: Recipe, given: Sequence[str], now: datetime) -> dict[str, str]:
    """The same values as SQL, by name; a time such as ``7d`` counts back from when the SQL is run.

    Raises:
        click.UsageError: as ``read_values``.
    """
    texts = _texts(recipe, given)
    return {parameter.name: _literal(parameter, texts, now) for parameter in recipe.parameters}


def _literal(parameter: Parameter, texts: Mapping[str, str], now: datetime) -> str:
    value = _value(parameter, texts, now)
    ago = _AGO.fullmatch(texts.get(parameter.name, ""))
    if parameter.type == "timestamptz" and ago is not None:
        # In hours, since a day of a time zone may have 23 of them.
        count, unit = (int(ago[1]) * 24, "hours") if ago[2] == "d" else (int(ago[1]), _UNITS[ago[2]])
        return f"(now() - interval '{count} {unit}')"
    return literal(parameter.type, None if value is None else str(value))


def _texts(recipe: Recipe, given: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals:
            raise _wrong(f"{item!r} is no NAME=VALUE. {_choice(recipe)}")
        if recipe.parameter(name) is None:
            raise _wrong(f"{recipe.name} has no parameter {name!r}{_meant(recipe, name)} {_choice(recipe)}")
        if name in texts:
            raise _wrong(f"{name} is given twice")
        texts[name] = text
    return texts


def _value(parameter: Parameter, texts: Mapping[str, str], now: datetime) -> object:
    text = texts.get(parameter.name, parameter.default)
    if text is None:
        return None
    try:
        return _READERS[parameter.type](text, now)
    except ValueError as error:
        raise _wrong(f"{parameter.name}={text!r}: {error}. {parameter.name}: {parameter.meaning}") from None


def _time(text: str, now: datetime) -> datetime:
    if (ago := _AGO.fullmatch(text)) is not None:
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        return from_microseconds(parse_day_or_instant(text))
    except ValueError:
        raise ValueError(
            "must be a day (2026-01-31, from midnight UTC), a time with its zone (2026-01-31T09:30:00Z), or "
            "how long ago (90m, 12h, 7d)"
        ) from None


def _integer(text: str, _now: datetime) -> int:
    if _INTEGER.fullmatch(text) is None or int(text) > _MAX_INTEGER:
        raise ValueError(f"must be a whole number from 0 to {_MAX_INTEGER}")
    return int(text)


def _number(text: str, _now: datetime) -> Decimal:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("must be a number such as 80 or 12.5")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("must be a number such as 80 or 12.5") from None


def _uuid(text: str, _now: datetime) -> UUID:
    if not is_uuid(text):
        raise ValueError("must be a UUID such as 123e4567-e89b-12d3-a456-426614174000")
    return UUID(text)


def _text(text: str, _now: datetime) -> str:
    if "\0" in text:
        raise ValueError("must not hold the character U+0000")
    return text


_READERS: Final[Mapping[str, Callable[[str, datetime], object]]] = {
    "timestamptz": _time,
    "integer": _integer,
    "numeric": _number,
    "uuid": _uuid,
    "text": _text,
}


def _wrong(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint=_OPTION)


def _meant(recipe: Recipe, name: str) -> str:
    near = get_close_matches(name, [parameter.name for parameter in recipe.parameters], n=1)
    return f"; did you mean {near[0]}?" if near else "."


def _choice(recipe: Recipe) -> str:
    names = ", ".join(parameter.name for parameter in recipe.parameters)
    return f"Its parameters: {names}; trails query {recipe.name} --help explains them"
