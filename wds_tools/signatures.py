"""Functions that get their options as one object, and are called with plain keyword arguments.

The class of the object states each option once: name, type and default. A function with `takes` has its signature: for
type checkers and editors by ``ParamSpec``, for `help` by ``__signature__``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self")


def takes(options: Callable[_P, _Options]) -> Callable[[Callable[[_Options], _Result]], Callable[_P, _Result]]:
    """Return a decorator of a function of ``options``, which is then called with their fields as arguments."""

    def decorate(function: Callable[[_Options], _Result]) -> Callable[_P, _Result]:
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _Result:
            _check_names(function, signature, args, kwargs)
            return function(options(*args, **kwargs))

        signature = _describe(call, function, options)
        return call

    return decorate


def method_takes(
    options: Callable[_P, _Options],
) -> Callable[[Callable[[_Self, _Options], _Result]], Callable[Concatenate[_Self, _P], _Result]]:
    """Return the decorator `takes` for a method."""

    def decorate(method: Callable[[_Self, _Options], _Result]) -> Callable[Concatenate[_Self, _P], _Result]:
        def call(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
            _check_names(method, signature, (self, *args), kwargs)
            return method(self, options(*args, **kwargs))

        signature = _describe(call, method, options)
        return call

    return decorate


def _describe(call: Callable[..., Any], function: Callable[..., Any], options: Callable[..., Any]) -> inspect.Signature:
    """Give a function the name and docstring of another one, and the parameters of its options."""
    functools.update_wrapper(call, function)
    signature = inspect.signature(function)
    *before, _ = signature.parameters.values()
    signature = signature.replace(parameters=[*before, *inspect.signature(options).parameters.values()])
    call.__signature__ = signature  # type: ignore[attr-defined]
    return signature


def _check_names(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:  # the class of the options would name itself
        raise TypeError(f"{function.__qualname__.removesuffix('.__init__')}() {error}") from None
