"""The garbage collector while workers run: it looks less often, and not at what was there before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["calm_collector"]

_ALLOCATIONS = 20_000  # a batch of claims in flight must not set off a search through all that the program holds
_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def calm_collector() -> Iterator[None]:
    """Freeze what the program has loaded, and collect each time 20,000 objects have come instead of some hundreds.

    It stays as it is where the application has switched it off, or made it rarer still. Workers of one process share
    it; the last to end puts it back. The technique: https://docs.python.org/3/library/gc.html#gc.freeze
    """
    global _users, _before
    with _lock:
        _users += 1
        if _users == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < _ALLOCATIONS:
                gc.freeze()
                gc.set_threshold(_ALLOCATIONS, *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and 0 < _before[0] < _ALLOCATIONS:
                gc.set_threshold(*_before)
                gc.unfreeze()
