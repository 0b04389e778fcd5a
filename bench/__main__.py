"""The command line of the benchmark: parse, run the rounds, print.

Every round measures the floor and fencepost one right after the other on each database, so that a machine
that slows down meanwhile slows both. What is printed is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench import floor, machine, order, product, report, schedules
from bench.databases import DATABASES, Database, LeftOut

TIME_LIMIT_SECONDS = 3600  # three rounds on three databases take some minutes; more than this is a hang
MEMORY_JOBS = 200_000


class OutOfTime(Exception):
    """The whole run took longer than its limit."""


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark. 0: done, whatever was left out; 1: nothing could be measured; 2: wrong usage."""
    options = parse(argv)
    _keep_promises(options.time_limit)
    try:
        results, left_out = measure_all(options)
    except OutOfTime:
        print(f"The run was stopped after its limit of {options.time_limit} s (--time-limit).", file=sys.stderr)
        return 1
    outcome = report.Outcome(machine.describe(), options.jobs, results, left_out)
    print(json.dumps(report.as_json(outcome), indent=2) if options.json else report.as_text(outcome))
    return 0 if results else 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Plain SQL and fencepost, side by side.")
    parser.add_argument("--databases", default=",".join(DATABASES), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s; the median is printed")
    parser.add_argument("--only", choices=("floor", "product", "schedules", "order"), help="measure one side alone")
    parser.add_argument(
        "--backlog", type=int, default=20_000, help="ready jobs beside a measured claim (default: %(default)s)"
    )
    parser.add_argument("--plot", type=Path, help="draw the shares of tenants over time into this SVG file")
    parser.add_argument(
        "--memory",
        action="store_true",
        help=f"instead: drain {MEMORY_JOBS:,} jobs once and print the worker's peak resident memory",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with the figures of every round")
    parser.add_argument("--time-limit", type=int, default=TIME_LIMIT_SECONDS, help="seconds (default: %(default)s)")
    options = parser.parse_args(argv)
    options.databases = options.databases.split(",")
    if unknown := [name for name in options.databases if name not in DATABASES]:
        parser.error(f"no database {', '.join(unknown)}; there are {', '.join(DATABASES)}")
    if min(options.jobs, options.rounds, options.time_limit, options.backlog) < 1:
        parser.error("--jobs, --rounds, --backlog and --time-limit are at least 1")
    if options.memory:
        options.jobs, options.rounds, options.only = MEMORY_JOBS, 1, "product"
    return options


def measure_all(options: argparse.Namespace) -> tuple[list[report.Measured], dict[str, str]]:
    """Every round on every database that can be reached, and why the others were left out."""
    results: list[report.Measured] = []
    reachable: list[tuple[Database, report.Measured]] = []
    left_out: dict[str, str] = {}
    for name in options.databases:
        database = DATABASES[name]()
        try:
            measured = report.Measured(name, database.describe())
        except LeftOut as reason:
            left_out[name] = str(reason)
            continue
        reachable.append((database, measured))
        results.append(measured)
    for number in range(1, options.rounds + 1):
        for database, measured in reachable:
            progress(f"round {number} of {options.rounds}: {database.name}")
            measured.rounds.append(_one_round(database, options))
    return results, left_out


def _one_round(database: Database, options: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    steps: dict[str, Callable[[str], dict[str, float]]] = {
        "floor": lambda url: floor.measure(database.open_floor(url), options.jobs),
        "product": lambda url: product.measure(database, url, options.jobs, memory_only=options.memory),
        "schedules": schedules.measure,
        "order": lambda url: order.measure(url, options.backlog, options.plot),
    }
    for side, step in steps.items():
        if options.only in (None, side) and not (options.memory and side != "product"):
            with database.scratch() as url:
                figures |= step(url)
    return figures


def progress(message: str) -> None:
    """A line for whoever waits; on stderr, so that the report on stdout stays clean."""
    print(message, file=sys.stderr, flush=True)


def _keep_promises(time_limit: int) -> None:
    """A limit in time, and an end by SIGTERM that unwinds the stack: scratch databases and workers go with it."""

    def out_of_time(_number: int, _frame: FrameType | None) -> NoReturn:
        raise OutOfTime

    def terminated(number: int, _frame: FrameType | None) -> NoReturn:
        # Once: a second signal, as process managers like to send, must not interrupt the cleaning up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.alarm(0)
        sys.exit(128 + number)

    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, terminated)
    signal.alarm(time_limit)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
