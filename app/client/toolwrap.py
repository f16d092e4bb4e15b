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


class ToolDecorator:
    """Made by ``Guard.tool``; put it on functions, coroutine functions and methods."""

    def __init__(
        self, gate: Gate, name: str, *, cost: int | None, wait: bool, thought_process: str | None
    ) -> None:
        self._gate = gate
        self._name = name
        self._cost = cost
        self._wait = wait
        self._thought = thought_process

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The guarded function, with the signature and types of ``function``.

        Raises:
            TypeError: ``function`` is a generator function: what it does happens after its call, unguarded;
                or it is a ``classmethod`` or ``staticmethod``, which have to stand above the guard.
        """
        if isinstance(function, classmethod | staticmethod):
            raise TypeError(f"{self._name}: put @{type(function).__name__} above the guard, not below it")
        called = _called(function)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(f"{self._name}: a generator does its work after the call; guard what it calls")
        if inspect.iscoroutinefunction(called):
            return cast(
                "Callable[P, R]", self._coroutine_function(cast("Callable[P, Awaitable[R]]", function))
            )
        return self._function(function)

    def _function(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            decision = self._gate.decide(
                self._name,
                arguments(function, args, kwargs),
                cost=self._cost,
                thought_process=self._thought,
                wait=self._wait,
            )
            allowed = permitted(self._name, decision)
            return self._gate.carry_out(allowed, lambda: function(*args, **kwargs), judge=_judge)

        return guarded

    def _coroutine_function(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            decision = await self._gate.adecide(
                self._name,
                arguments(function, args, kwargs),
                cost=self._cost,
                thought_process=self._thought,
                wait=self._wait,
            )
            allowed = permitted(self._name, decision)
            return await self._gate.acarry_out(allowed, lambda: function(*args, **kwargs), judge=_judge)

        return guarded


def arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, defaults included; without ``self`` or ``cls`` of a method.

    Raises:
        TypeError: ``function`` does not take these arguments; nothing was asked.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    first = next(iter(bound.signature.parameters), None)
    if first in _RECEIVERS and _is_method(function):
        del named[first]
    return named


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs when it is called: of an object that is called like a function, its ``__call__``."""
    if inspect.isroutine(function) or inspect.isclass(function) or isinstance(function, functools.partial):
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
