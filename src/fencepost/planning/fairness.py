"""Start-time fair queueing: tenants share a queue by weight, whatever the size of their backlogs.

    start  = max(virtual time, the tenant's finish)        the order in which jobs are started
    finish = start + cost / weight                         where the tenant's next job begins

*Virtual time* is the start of the next job to be claimed. So an idle tenant gains no credit: when it comes back, it
begins at the virtual time and not at the finish it once had. P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queuing:
A Scheduling Algorithm for Integrated Services Packet Switching Networks", SIGCOMM 1996; all jobs cost the same.

What follows from it, and is tested here:

- While two tenants are backlogged, the numbers of their jobs that were started, each divided by the tenant's weight,
  differ by at most 1/weight + 1/weight (theorem 1 of the paper).
- A job of a tenant that has none waiting is started after at most one job of every other tenant.
- No job waits for more than that plus its own tenant's earlier jobs, however the others flood the queue.

Units: virtual time is counted in nanoseconds from the beginning of a *period*, a span in which jobs always waited.
A period has an anchor, the instant (microseconds since the epoch) at which its virtual time is 0 in ranks, so that the
jobs of a fair queue compare with those of other queues by about their arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from fencepost.job import Micros, Priority
from fencepost.planning.rank import rank

__all__ = [
    "COST",
    "DEFAULT_WEIGHT",
    "HEAVIEST",
    "LIGHTEST",
    "MOST_LEAD",
    "Period",
    "Tenant",
    "Turn",
    "allot",
    "cost_of",
    "excess_lead",
    "period_at",
    "rank_of",
    "takes_turns",
]

COST = 1_000_000
"""Virtual nanoseconds that a job of weight 1 takes: 1 ms, so that 100,000 of them lead by less than two minutes."""

DEFAULT_WEIGHT = 1.0
LIGHTEST, HEAVIEST = 0.01, 100.0  # at the heaviest a job still takes 10 µs, ten steps of the rank

MOST_LEAD: Micros = 60 * 1_000_000
"""How far the virtual time may run ahead of the clock before its ranks are moved back: beyond it, a fair queue that
drains quickly would stand behind every other queue."""

_BASE = rank(Priority.NORMAL, 0)


class Tenant(NamedTuple):
    """One tenant's clock: where its next job begins unless the virtual time is beyond, and its weight."""

    finish: int
    weight: float


class Turn(NamedTuple):
    """One job's turn: whose, and its virtual start."""

    tenant: str
    start: int


@dataclass(frozen=True, slots=True)
class Period:
    """A span in which jobs always waited.

    Attributes:
        number: grows by one with each; a tenant's clock of an older period counts as 0.
        anchor: the instant at which virtual time 0 stands in ranks.
        virtual_time: nanoseconds; never goes back within a period.
        last_start: the greatest virtual start that was given in it.
    """

    number: int
    anchor: Micros
    virtual_time: int
    last_start: int


def takes_turns(priority: Priority, start_at: Micros | None) -> bool:
    """Whether a job shares a fair queue by weight.

    Critical and high ones go before all, by arrival, and those that are still to keep a fixed start by their instant.
    """
    return start_at is None and priority in (Priority.NORMAL, Priority.LOW)


def cost_of(weight: float) -> int:
    """Virtual nanoseconds that one job of a tenant takes."""
    return round(COST / weight)


def period_at(period: Period, head: int | None, now: Micros, *, is_backlogged: bool) -> Period:
    """The period as it stands now.

    Args:
        period: as it was known last.
        head: the least rank of the jobs that have had their turn and are ready; None: all were claimed.
        now: the database's clock.
        is_backlogged: whether jobs were left waiting for their turn when it was known last. If not, and all were
            claimed, nobody waited: whoever comes begins a new period, in which nobody owes anything.
    """
    if head is None:
        if not is_backlogged:
            return Period(period.number + 1, now, 0, 0)
        return replace(period, virtual_time=max(period.virtual_time, period.last_start))
    return replace(period, virtual_time=max(period.virtual_time, (head - _BASE - period.anchor) * 1000))


def excess_lead(period: Period, now: Micros) -> Micros:
    """By how much the ranks of this period are to be moved back, once they lead too far; 0: not at all."""
    lead = period.anchor + period.virtual_time // 1000 - now
    return lead if lead > MOST_LEAD else 0


def allot(virtual_time: int, tenants: Mapping[str, Tenant], waiting: Mapping[str, int], most: int) -> list[Turn]:
    """The next turns, in the order of their starts.

    Args:
        virtual_time: nanoseconds.
        tenants: the clocks of those that have jobs waiting, in the order in which equals go.
        waiting: how many each has waiting.
        most: how many turns at most.
    """
    heap = [
        (max(virtual_time, clock.finish), place, name, cost_of(clock.weight))
        for place, (name, clock) in enumerate(tenants.items())
        if waiting.get(name, 0) > 0
    ]
    heapify(heap)
    left = dict(waiting)
    turns: list[Turn] = []
    while heap and len(turns) < most:
        start, place, name, cost = heap[0]
        turns.append(Turn(name, start))
        left[name] -= 1
        if left[name]:
            heapreplace(heap, (start + cost, place, name, cost))
        else:
            heappop(heap)
    return turns


def rank_of(period: Period, start: int) -> int:
    """The rank of a job whose virtual start is `start`."""
    return _BASE + period.anchor + start // 1000
