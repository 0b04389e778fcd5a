"""Waiting for a condition, with a bound; never a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["until"]

T = TypeVar("T")

_LOOK_SECONDS = 0.02


def until(condition: Callable[[], T], what: str, *, seconds: float = 20.0, look: float = _LOOK_SECONDS) -> T:
    """Wait until the condition's answer is true, and return it.

    Raises:
        AssertionError: it was not within `seconds`; `what` is in the text.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what} (last answer: {answer!r})"
        time.sleep(look)
