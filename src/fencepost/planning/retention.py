"""Retention: which of the final jobs that are read, newest first, have to go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fencepost.job import Micros, State
from fencepost.retention import EVERY_QUEUE, Rule

__all__ = ["Final", "Rules", "Tally", "newest_that_may_go", "next_batch"]

Rules = Mapping[str, Mapping[State, Rule]]
"""By queue and state; `"*"` holds for the queues that are not named."""

_LEAST, _MOST = 10, 1000
_SLOW_SECONDS, _QUICK_SECONDS = 0.1, 0.03


@dataclass(frozen=True, slots=True)
class Final:
    """What retention looks at of a final job."""

    id: str
    queue: str
    state: str
    finished_at: Micros
    schedule: str | None = None
    scheduled_for: Micros | None = None


@dataclass(slots=True)
class Tally:
    """Judges final jobs one after the other, newest first, and counts those that stay by queue and state.

    Attributes:
        rules: what is kept.
        now: the instant from which ages count.
    """

    rules: Rules
    now: Micros
    _kept: Counter[tuple[str, str]] = field(default_factory=Counter)

    def goes(self, job: Final) -> bool:
        """Whether the next job has to go."""
        of_queue = self.rules.get(job.queue, self.rules.get(EVERY_QUEUE, {}))
        rule = of_queue.get(State(job.state)) if job.state in list(State) else None
        if rule is None:
            return False
        if rule.age is not None and job.finished_at < self.now - rule.age:
            return True
        place = (job.queue, job.state)
        if rule.keep is not None and self._kept[place] >= rule.keep:
            return True
        self._kept[place] += 1
        return False


def newest_that_may_go(rules: Rules, now: Micros) -> Micros | None:
    """The instant before which a job must have ended for any rule to be against it; None: no rule is there.

    Where jobs are counted all of them have to be read, from the newest on.
    """
    every: Iterable[Rule] = [rule for of_queue in rules.values() for rule in of_queue.values()]
    return max((now + 1 if rule.keep is not None else now - (rule.age or 0) for rule in every), default=None)


def next_batch(batch: int, took: float) -> int:
    """How many to read and delete in the next transaction, after one of `batch` took so many seconds.

    Half as many where it was slow (large rows, a slow disk), twice as many where it was quick, from 10 to 1,000.
    """
    if took > _SLOW_SECONDS:
        return max(_LEAST, batch // 2)
    return min(_MOST, batch * 2) if took < _QUICK_SECONDS else batch
