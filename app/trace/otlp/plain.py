"""Numbers whose canonical spelling the quick encoder writes by itself."""

from __future__ import annotations

from app.chain.strict import JsonObject, JsonValue, is_plain


def is_plain_value(value: JsonValue) -> bool:
    """Whether every float in ``value`` is spelt canonically by the encoder as it stands."""
    if type(value) is float:
        return is_plain(value)
    if type(value) is dict:
        return are_plain(value)
    if type(value) is list:
        return all(type(item) is str or is_plain_value(item) for item in value)
    return True


def are_plain(members: JsonObject) -> bool:
    """The same for the members of an object; most are strings."""
    for member in members.values():  # a loop, since this is done for every span
        if type(member) is not str and type(member) is not int and not is_plain_value(member):
            return False
    return True
