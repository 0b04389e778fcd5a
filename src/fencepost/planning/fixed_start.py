"""Fixed starts: a job is claimed a little ahead, its start awaited, and a start that was not kept judged. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.job import Claim, FixedStart, Micros, OnMiss, Reason
from fencepost.planning.outcome import Outcome, Verb

__all__ = ["HELD_SHARE", "StartFigures", "is_kept", "most_held", "outcome_of_miss", "start_note"]

HELD_SHARE = 4
"""One slot in so many may be held for a start that is awaited, so that the rest of the work goes on."""


@dataclass(frozen=True, slots=True)
class StartFigures:
    """What became of fixed starts.

    Attributes:
        kept: started within their tolerance.
        late: ran after it.
        skipped, failed: ended with reason `missed_start`.
    """

    kept: int = 0
    late: int = 0
    skipped: int = 0
    failed: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The share of starts that were kept; None: there were none."""
        total = self.kept + self.late + self.skipped + self.failed
        return self.kept / total if total else None


def most_held(slots: int) -> int:
    """How many slots of a worker may wait for fixed starts at once."""
    return max(1, slots // HELD_SHARE)


def is_kept(start: FixedStart, now: Micros) -> bool:
    """Whether an attempt that starts now is on time."""
    return now <= start.at + start.tolerance


def outcome_of_miss(claim: Claim, now: Micros) -> Outcome | None:
    """What ends an attempt whose fixed start has passed; None: it may run.

    Only a job that has never been tried has a start to keep: a retry comes when its backoff says.
    """
    start = claim.start
    if start is None or claim.reason is not None or is_kept(start, now) or start.on_miss is OnMiss.RUN_LATE:
        return None
    if start.on_miss is OnMiss.SKIP:
        return Outcome(Verb.SKIP, reason=Reason.MISSED_START)
    return Outcome(Verb.ABANDON, error=start_note(start, now), reason=Reason.MISSED_START)


def start_note(start: FixedStart, now: Micros) -> str:
    """How late a start is, in words."""
    late, tolerance = (now - start.at) / 1_000_000, start.tolerance / 1_000_000
    return f"Its start was missed by {late:.3f} s; {tolerance:g} s were tolerated."
