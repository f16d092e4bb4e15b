"""The decorator of guarded functions: the same signature, and the guard before it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from app.client.decisions import permitted
from app.client.verdicts import Verdict, success

if TYPE_CHECKING:
    from app.client.gate import Gate

P = ParamSpec("P")
R = TypeVar("R")

_RECEIVERS = ("self", "cls")

_PLACEHOLDER = getattr(functools, "Placeholder", object())
"""Stands in a ``partial`` for an argument of the call (Python 3.14)."""


class ToolDecorator:
    """Made by ``Guard.tool``; put it on functions, coroutine functions and methods.

    Args:
        gate: whom to ask.
        name: of the tool; None: the function's own.
        cost: raises the charge.
        wait: whether a call that needs a person waits for the approval.
        thought_process: put on record with each call.
    """

    def __init__(
        self, gate: Gate, name: str | None, *, cost: int | None, wait: bool, thought_process: str | None
    ) -> None:
        self._gate = gate
        self._name = name
        self._cost = cost
        self._wait = wait
        self._thought = thought_process

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The guarded function, with the signature and types of ``function``.

        Raises:
            TypeError: what stands below it cannot be guarded; says what to write instead. Nothing passes
                unguarded.
        """
        name = self._name if self._name is not None else _own_name(function)
        _refuse_what_cannot_be_guarded(name, function)
        if inspect.iscoroutinefunction(_called(function)):
            asynchronous = cast("Callable[P, Awaitable[R]]", function)
            return cast("Callable[P, R]", self._coroutine_function(name, asynchronous))
        return self._function(name, function)

    def _function(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            decision = self._gate.decide(
                name,
                arguments(function, args, kwargs),
                cost=self._cost,
                thought_process=self._thought,
                wait=self._wait,
            )
            allowed = permitted(name, decision)
            return self._gate.carry_out(allowed, lambda: function(*args, **kwargs), judge=_judge)

        return guarded

    def _coroutine_function(
        self, name: str, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            decision = await self._gate.adecide(
                name,
                arguments(function, args, kwargs),
                cost=self._cost,
                thought_process=self._thought,
                wait=self._wait,
            )
            allowed = permitted(name, decision)
            return await self._gate.acarry_out(allowed, lambda: function(*args, **kwargs), judge=_judge)

        return guarded


def arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, defaults included; without ``self`` or ``cls`` of a method.

    What a ``functools.partial`` brings with it counts: the function gets it, so the record has it.

    Raises:
        TypeError: ``function`` does not take these arguments; nothing was asked.
    """
    function, args, kwargs = _without_partials(function, args, kwargs)
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    first = next(iter(bound.signature.parameters), None)
    if first in _RECEIVERS and _is_method(function):
        del named[first]
    return named


def _without_partials(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function itself, and all that it gets."""
    while isinstance(function, functools.partial):
        given = iter(args)
        brought = tuple(next(given) if value is _PLACEHOLDER else value for value in function.args)
        args, kwargs = (*brought, *given), {**function.keywords, **kwargs}
        function = function.func
    return function, args, kwargs


def _own_name(function: object) -> str:
    """The name that a function was defined with.

    Raises:
        TypeError: it has none that a policy could list.
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f'{function!r} has no name of its own; write @guard.tool("name")')
    return name


def _refuse_what_cannot_be_guarded(name: str, function: object) -> None:
    """Raises ``TypeError`` for what does its work beside the call that was asked for."""
    if isinstance(function, classmethod | staticmethod):
        raise TypeError(f"{name}: put @{type(function).__name__} above the guard, not below it")
    if inspect.isclass(function):
        raise TypeError(f"{name}: a class is no tool; put the guard on its methods, or on a function")
    if isinstance(function, property | functools.partialmethod) or not callable(function):
        raise TypeError(
            f"{name}: a {type(function).__name__} is not called; put the guard on the function inside it"
        )
    called = _called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(f"{name}: a generator does its work after the call; guard what it calls")


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs when it is called: of an object that is called like a function, its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def _judge(result: object) -> Verdict:
    """What returns a promise has not done it yet."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        return "unknown", f"returned a {type(result).__name__}, which does its work later"
    return success(result)


def _is_method(function: Callable[..., Any]) -> bool:
    """Whether the function stands in a class, as far as its name tells."""
    scope, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    return bool(scope) and not scope.endswith("<locals>")
