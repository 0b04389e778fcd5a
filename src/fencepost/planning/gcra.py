"""GCRA, the generic cell rate algorithm: a token bucket whose whole state is one instant.

The *theoretical arrival time* is the instant at which the bucket will be full again. A start of `amount` tokens moves
it on by `amount` intervals, and is let through if it then lies no more than `burst` intervals ahead of now. So in any
window of t seconds at most `burst + rate * t` tokens go, whoever takes them in whatever order, and nothing has to be
filled up: no process, no tick, and a process that dies gives nothing back.

Source: ITU-T Recommendation I.371 (2004), Annex A, "virtual scheduling algorithm"; the same as
https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm.

Theoretical arrival times are integer nanoseconds since the Unix epoch, because an interval of some rates is no whole
number of microseconds. Intervals are rounded up: a bucket is a billionth slower than asked for, never faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fencepost.job import Micros

__all__ = ["MOST_BURST", "MOST_PER_SECOND", "Bucket", "interval_of"]

_NANOS = 1_000_000_000
_PER_MICRO = 1000
_WAKE_SECONDS = 0.02  # tokens of so long are handed out together: fifty passes a second, whatever the rate

MOST_PER_SECOND = 1_000_000
MOST_BURST = 1_000_000_000


def interval_of(per_second: float) -> int:
    """Nanoseconds between two tokens."""
    return math.ceil(_NANOS / per_second)


@dataclass(slots=True)
class Bucket:
    """One bucket as its row tells it.

    Attributes:
        per_second: tokens a second.
        burst: how many it holds.
        tat: the theoretical arrival time, nanoseconds since the Unix epoch.
    """

    per_second: float
    burst: int
    tat: int

    def _start(self, now: Micros) -> int:
        # Further ahead than the burst it can only be if the clock was set back: then the bucket is empty, not locked.
        nanos = now * _PER_MICRO
        return max(nanos, min(self.tat, nanos + self.burst * interval_of(self.per_second)))

    def tokens(self, now: Micros) -> int:
        """How many tokens are there."""
        ahead = self._start(now) - now * _PER_MICRO
        return self.burst - -(-ahead // interval_of(self.per_second))

    def take(self, now: Micros, amount: int) -> bool:
        """Take tokens if they are all there. Returns whether they were."""
        if amount > self.tokens(now):
            return False
        self.tat = self._start(now) + amount * interval_of(self.per_second)
        return True

    def due_at(self, now: Micros, amount: int) -> Micros:
        """The instant from which `amount` tokens (at most the burst) are there, if nobody takes any before."""
        interval = interval_of(self.per_second)
        at = self._start(now) - (self.burst - min(amount, self.burst)) * interval
        return max(now, -(-at // _PER_MICRO))

    def wake_amount(self, head: int) -> int:
        """How many tokens to wait for before those who wait are woken: what the first needs, and at high rates more.

        Never more than half the bucket, so that it does not run over before the woken ones have come for them.
        """
        return max(head, min(self.burst // 2, round(self.per_second * _WAKE_SECONDS)))

    def change(self, now: Micros, per_second: float, burst: int) -> None:
        """Go on with another rate and burst. Tokens that were spent stay spent; no more than the burst are owed."""
        spent = self.burst - self.tokens(now)
        self.per_second, self.burst = per_second, burst
        self.tat = now * _PER_MICRO + min(spent, burst) * interval_of(per_second)
