"""What a job needs to start: a permit, tokens, shares of a semaphore. Each is asked for at a gate.

A gate is named by a digest of what it is and of its name. Those who wait at one stand in the negative line of that
digest. Where several gates are locked it is in the order of their digests, so that no two transactions wait for each
other in a circle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from fencepost.job import Concurrency, JobLimits, Rate
from fencepost.store.tables import permit_digest_of, permit_line_of

__all__ = [
    "Demand",
    "Gate",
    "demands_of",
    "digest_of",
    "encode_limits",
    "limits_from_text",
    "row_demands",
    "stuck_line_of",
    "waits_for",
]


class Gate(StrEnum):
    """What a demand is made of."""

    CONCURRENCY = "concurrency"
    """A permit of a concurrency key."""
    RATE = "rate"
    """A token of a bucket whose rate the job itself names."""
    RESOURCE = "resource"
    """An amount of a bucket or semaphore that was declared by name."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one job asks for at one gate.

    Attributes:
        digest: of the gate.
        gate: what kind of gate.
        name: the key, or the resource's name.
        amount: permits, tokens or shares.
        slots: of a concurrency key, as the job names them.
        rate: of a rate key, as the job names it.
    """

    digest: str
    gate: Gate
    name: str
    amount: int = 1
    slots: int = 0
    rate: Rate | None = None


def digest_of(gate: Gate, name: str) -> str:
    """The digest of a gate: 32 hexadecimal characters."""
    if gate is Gate.CONCURRENCY:
        return permit_digest_of(name)
    # A concurrency key holds no NUL, so that no digest stands for two gates.
    return blake2b(f"{gate}\0{name}".encode(), digest_size=16).hexdigest()


def stuck_line_of(digest: str) -> int:
    """The line of those who ask a gate for more than it will ever have: they stand in nobody's way there."""
    return permit_line_of(blake2b(f"stuck\0{digest}".encode(), digest_size=16).hexdigest())


def demands_of(concurrency: Concurrency | None, limits: JobLimits | None) -> list[Demand]:
    """All that a job asks for, in the order of the gates' digests."""
    found = []
    if concurrency is not None:
        digest = digest_of(Gate.CONCURRENCY, concurrency.key)
        found.append(Demand(digest, Gate.CONCURRENCY, concurrency.key, slots=concurrency.slots))
    if limits is not None:
        if limits.rate is not None:
            key = limits.rate.key
            found.append(Demand(digest_of(Gate.RATE, key), Gate.RATE, key, rate=limits.rate))
        for name, amount in limits.resources:
            found.append(Demand(digest_of(Gate.RESOURCE, name), Gate.RESOURCE, name, amount))
    return sorted(found, key=lambda demand: demand.digest)


def encode_limits(rate: Rate | None, resources: Iterable[tuple[str, int]]) -> str | None:
    """The column `limits`: JSON text, None for nearly all jobs."""
    stored: dict[str, Any] = {}
    if rate is not None:
        stored["rate"] = [rate.key, rate.per_second, rate.burst]
    amounts = dict(resources)
    if amounts:
        stored["resources"] = amounts
    return json.dumps(stored, ensure_ascii=False, separators=(",", ":"), sort_keys=True) if stored else None


def limits_from_text(text: str | None) -> JobLimits | None:
    """The column `limits` as data.

    Raises:
        ValueError, TypeError, ...: it is damaged, or was written by a newer version.
    """
    if text is None:
        return None
    stored = json.loads(text)
    if stored.keys() - {"rate", "resources"}:
        raise ValueError(f"the limits {text} are of a kind that this version does not know")
    rate = None
    if "rate" in stored:
        key, per_second, burst = stored["rate"]
        if not isinstance(key, str) or not per_second > 0 or not isinstance(burst, int) or burst < 1:
            raise ValueError(f"the limits {text} hold no rate")
        rate = Rate(key, per_second, burst)
    resources = tuple(sorted(stored.get("resources", {}).items()))
    if any(not isinstance(amount, int) or amount < 1 for _, amount in resources):
        raise ValueError(f"the limits {text} hold no amounts")
    return JobLimits(rate, resources)


def row_demands(row: Any) -> list[Demand]:
    """The demands of a row with `permit_key`, `permit_slots` and `limits`; what cannot be read asks for nothing."""
    concurrency = None if row.permit_key is None else Concurrency(row.permit_key, row.permit_slots)
    try:
        limits = limits_from_text(row.limits)
    except (ValueError, TypeError, AttributeError):
        limits = None
    return demands_of(concurrency, limits)


def waits_for(row: Any) -> str | None:
    """What a blocked row waits for, in words; None where its line is of no gate of its own."""
    for demand in row_demands(row):
        what = "concurrency key" if demand.gate is Gate.CONCURRENCY else demand.gate.value
        if row.line == permit_line_of(demand.digest):
            return f"{what} {demand.name!r}"
        if row.line == stuck_line_of(demand.digest):
            return f"{what} {demand.name!r}, which never has {demand.amount:,}"
    return None
