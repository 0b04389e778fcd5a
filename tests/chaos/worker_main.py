"""A worker as a process of its own: `python -m tests.chaos.worker_main --lease 2 --concurrency 4 ...`."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.chaos.clocks import shift_clocks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--lease", type=float, default=2)
    parser.add_argument("--grace", type=float, default=5)
    parser.add_argument("--poll", type=float, default=0.1)
    parser.add_argument("--burst", action="store_true")
    parser.add_argument("--clock-shift", type=float, default=0)
    asked = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    shift_clocks(asked.pop("clock_shift"))

    from tests.chaos import handlers  # only now is the clock what it should be

    handlers.app.run_worker(**asked)


if __name__ == "__main__":
    main()
