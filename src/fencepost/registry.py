"""Handlers: the functions that run jobs, by kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from fencepost.codec import MAX_PAYLOAD_BYTES, ArgumentsCodec, ResultCodec
from fencepost.errors import ConfigurationError
from fencepost.job import Options

__all__ = ["ExecutorName", "Handler", "Registry", "kind_of", "module_of"]

ExecutorName: TypeAlias = Literal["async", "thread", "process"]
"""Where a handler runs: on the worker's event loop, on one of its threads, or in a process that can be killed."""


@dataclass(frozen=True)
class Handler:
    """One registered function.

    Attributes:
        kind: its name in the database.
        function: what runs.
        options: the defaults of its jobs.
        executor: where it runs.
        context_type: the annotation by which it asks for its context.
        max_payload_bytes: the largest encoded arguments or result.
    """

    kind: str
    function: Callable[..., Any]
    options: Options
    executor: ExecutorName
    context_type: type
    max_payload_bytes: int = MAX_PAYLOAD_BYTES

    @cached_property
    def arguments(self) -> ArgumentsCodec:
        """How its arguments are stored. Built at the first use: annotations may name what is defined later."""
        return ArgumentsCodec(self.function, self.context_type, max_bytes=self.max_payload_bytes)

    @cached_property
    def result(self) -> ResultCodec:
        """How what it returns is stored."""
        return ResultCodec.of(self.function, max_bytes=self.max_payload_bytes)


class Registry:
    """The handlers of one app, by kind."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register a handler.

        Raises:
            ConfigurationError: another function has this kind already.
        """
        known = self._handlers.get(handler.kind)
        if known is not None and _origin(known.function) != _origin(handler.function):
            raise ConfigurationError(
                f"Two functions are registered as {handler.kind!r}: {_origin(known.function)} and "
                f"{_origin(handler.function)}. Name one of them: @app.job(kind='...')"
            )
        self._handlers[handler.kind] = handler

    def get(self, kind: str) -> Handler | None:
        """The handler of a kind, or None."""
        return self._handlers.get(kind)

    def kinds(self) -> frozenset[str]:
        """All registered kinds."""
        return frozenset(self._handlers)

    def handlers(self) -> Iterable[Handler]:
        """All handlers."""
        return tuple(self._handlers.values())


def kind_of(function: Callable[..., Any]) -> str:
    """The default kind: module path and function name."""
    return f"{module_of(function)}.{function.__qualname__}"


def module_of(function: Callable[..., Any]) -> str:
    """The module that defines a function. A script's own module is named after its file.

    A job enqueued by `python tasks.py` must find its handler in a worker that imports `tasks`, and two scripts on one
    database must not take each other's schedules for their own.
    """
    module = function.__module__
    if module == "__main__":
        spec = getattr(inspect.getmodule(function), "__spec__", None)
        file = inspect.getsourcefile(function)
        if spec is not None:
            return str(spec.name.removesuffix(".__main__"))
        if file is not None:
            return inspect.getmodulename(file) or module
    return module


def _origin(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
