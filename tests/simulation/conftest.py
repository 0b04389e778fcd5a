"""`--seed N` replays one simulation; a failing test's name and message carry its seed."""

from __future__ import annotations

import pytest

SEEDS = (1, 2, 3)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay the simulations with this seed alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        # Only a run of this folder knows the option: pytest reads the options before it collects.
        asked = metafunc.config.getoption("--seed", default=None)
        seeds = SEEDS if asked is None else (asked,)
        metafunc.parametrize("seed", seeds, ids=[f"seed={seed}" for seed in seeds])
