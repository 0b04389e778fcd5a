"""What was measured, as a table for people or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple

__all__ = ["Measured", "Outcome", "as_json", "as_text"]


class Line(NamedTuple):
    """A line of the table: a figure of fencepost beside the floor's for the same work."""

    title: str
    product: str | None
    floor: str | None = None
    unit: str = "/s"


LINES = (
    Line("insert, 1000 a transaction : enqueue_many", "enqueue_many", "floor_insert"),
    Line("insert by COPY, 1000 a transaction : enqueue_many", "enqueue_many", "floor_bulk_load"),
    Line("claim and settle by 100 : drain, one worker process", "drain", "floor_drain"),
    Line("insert, one a transaction : enqueue", "enqueue", "floor_insert_single"),
    Line("insert, one a transaction : 500 concurrent aenqueue", "aenqueue", "floor_insert_single"),
    Line("enqueue to start, idle worker, median", "latency_p50_ms", unit=" ms"),
    Line("enqueue to start, idle worker, 99th percentile", "latency_p99_ms", unit=" ms"),
    Line("instants made by a planner that is behind", "materialise"),
    Line("instant to start, idle worker, median", "lag_p50_ms", unit=" ms"),
    Line("instant to start, idle worker, 99th percentile", "lag_p99_ms", unit=" ms"),
    Line("instant to fixed start, idle worker, median", "exact_p50_ms", unit=" ms"),
    Line("instant to fixed start, idle worker, 99th percentile", "exact_p99_ms", unit=" ms"),
    Line("idle worker with 2,000 schedules, of one core", "schedules_idle_percent", unit=" %"),
    Line("claim of 100 beside 1,000 ready jobs", "claim_few_ms", unit=" ms"),
    Line("claim of 100 beside a backlog (--backlog)", "claim_many_ms", unit=" ms"),
    Line("shares of tenants, largest deviation from their weights", "shares_percent", unit=" %"),
    Line("leader killed: until another leads, worst of 3", "takeover_seconds", unit=" s"),
    Line("worker's resident memory before the drain", "worker_idle_mib", unit=" MiB"),
    Line("worker's peak resident memory in the drain", "worker_peak_mib", unit=" MiB"),
)


@dataclass
class Measured:
    """One database: what it is, and the figures of each round by name."""

    name: str
    description: str
    rounds: list[dict[str, float]] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        """Of the rounds, figure by figure."""
        return {name: median(figures[name] for figures in self.rounds) for name in self.rounds[0]}


@dataclass(frozen=True)
class Outcome:
    """A whole run."""

    machine: dict[str, str]
    jobs: int
    databases: list[Measured]
    left_out: dict[str, str]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything, with the figures of every round."""
    return {
        "machine": outcome.machine,
        "jobs": outcome.jobs,
        "databases": [
            asdict(measured) | {"median": measured.medians(), "ratio": _ratios(measured)}
            for measured in outcome.databases
        ],
        "left_out": outcome.left_out,
    }


def as_text(outcome: Outcome) -> str:
    """The machine, then a table a database. A ratio above 1 means that fencepost is faster than the floor."""
    text = [f"{name}: {value}" for name, value in outcome.machine.items()]
    for measured in outcome.databases:
        rounds = len(measured.rounds)
        text += ["", measured.description]
        text.append(f"{outcome.jobs:,} jobs, {f'median of {rounds} rounds' if rounds > 1 else 'one round'}")
        text += _table(measured)
    for name, reason in outcome.left_out.items():
        text += ["", f"{name} was left out: {reason}"]
    return "\n".join(text)


def _table(measured: Measured) -> list[str]:
    medians = measured.medians()
    rows = [("", "floor", "fencepost", "ratio")]
    for line in LINES:
        floor, product = medians.get(line.floor or ""), medians.get(line.product or "")
        if floor is None and (product is None or line.floor == "floor_bulk_load"):
            continue
        ratio = f"{product / floor:.2f}" if floor and product else ""
        rows.append((line.title, _with_unit(floor, line.unit), _with_unit(product, line.unit), ratio))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"  {row[0]:<{widths[0]}}  " + "  ".join(f"{row[n]:>{widths[n]}}" for n in (1, 2, 3)).rstrip() for row in rows
    ]


def _ratios(measured: Measured) -> dict[str, float]:
    medians = measured.medians()
    return {
        f"{line.product} / {line.floor}": round(medians[line.product] / medians[line.floor], 3)
        for line in LINES
        if line.product in medians and line.floor in medians
    }


def _with_unit(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:,.1f}{unit}"
