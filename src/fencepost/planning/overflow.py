"""Bounded queues: what an enqueue may store, and who has to go. Pure; `store.bounds` does what this decides."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from heapq import heapify, heapreplace

from fencepost.queue import Overflow, QueueSettings

__all__ = ["longest_first", "room_for"]


def room_for(settings: QueueSettings, pending: int, asked: int, *, may_wait: bool) -> int:
    """How many of `asked` new jobs may be stored now.

    Args:
        settings: the queue's, with a bound, and an overflow that sheds nothing.
        pending: how many wait in it (more than its bound: any number above it).
        asked: how many want in.
        may_wait: whether the rest will ask again; without, all are stored or none.
    """
    assert settings.max_pending is not None
    room = max(0, settings.max_pending - pending)
    if settings.overflow is Overflow.WAIT and may_wait:
        return min(room, asked)
    return asked if asked <= room else 0


def longest_first(waiting: Mapping[int, tuple[int, float]], excess: int) -> dict[int, int]:
    """How many jobs each line of a fair queue loses, so that the longest for their weight lose first.

    Args:
        waiting: for each line, how many wait in it and its tenant's weight.
        excess: how many have to go; fewer go where fewer wait.
    """
    heap = [(-Fraction(count) / Fraction(weight), line) for line, (count, weight) in waiting.items() if count]
    heapify(heap)
    losses = dict.fromkeys(waiting, 0)
    for _ in range(min(excess, sum(count for count, _ in waiting.values()))):
        load, line = heap[0]
        losses[line] += 1
        heapreplace(heap, (load + 1 / Fraction(waiting[line][1]), line))
    return {line: lost for line, lost in losses.items() if lost}
