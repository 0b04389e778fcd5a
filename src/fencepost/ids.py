"""Job ids: UUIDv7 (RFC 9562, section 5.7), made by the client so that an insert can be repeated harmlessly."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["new_id", "parse_id"]

_HEX = frozenset("0123456789abcdef")


class _Generator:
    """A UUIDv7 source whose ids grow strictly within one process.

    The 74 bits after the millisecond are a random start plus a counter (RFC 9562, section 6.2, method 2: a
    monotonic random counter), so that ids made in one millisecond sort in the order in which they were made.
    """

    __slots__ = ("_counter", "_lock", "_millis")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millis = 0
        self._counter = 0

    def __call__(self) -> str:
        with self._lock:
            millis = time.time_ns() // 1_000_000
            if millis > self._millis:
                self._millis = millis
                # 73 of 74 bits: the top one stays free, so the counter cannot run over within a millisecond.
                self._counter = int.from_bytes(os.urandom(10), "big") >> 7
            else:  # the same millisecond, or a clock that stepped back: keep growing from where we were
                millis = self._millis
                self._counter += 1
            counter = self._counter
        value = f"{millis:012x}7{counter >> 62:03x}{0x8000000000000000 | (counter & 0x3FFFFFFFFFFFFFFF):016x}"
        return f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"


_generator = _Generator()


def new_id() -> str:
    """A new job id: a UUIDv7 as 36 lowercase characters, greater than every id made before in this process."""
    return _generator()


def _reset_after_fork() -> None:
    # A child that went on from its parent's counter would make the parent's next ids a second time.
    global _generator
    _generator = _Generator()


os.register_at_fork(after_in_child=_reset_after_fork)


def parse_id(text: object) -> str | None:
    """The canonical form of a job id given by a person, or None where it is not a UUID at all."""
    plain = str(text).strip().lower().replace("-", "")
    if len(plain) != 32 or not _HEX.issuperset(plain):
        return None
    return f"{plain[:8]}-{plain[8:12]}-{plain[12:16]}-{plain[16:20]}-{plain[20:]}"
