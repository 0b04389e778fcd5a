"""What can be said of a queue, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import fencepost
from fencepost.queue import KnownQueues, Overflow, QueueSettings
from fencepost.queues import build_settings


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"max_pending": 0}, "from 1 to 1,000,000"),
        ({"max_pending": True}, "from 1 to 1,000,000"),
        ({"max_pending": 5, "overflow": "drop"}, "shed_lowest"),
        ({"overflow": "wait"}, "max_pending"),
        ({"max_pending": 5, "wait": 3}, "overflow='wait'"),
        ({"max_pending": 5, "overflow": "wait", "wait": -1}, "wait is between"),
        ({"fairness": True}, "no setting 'fairness'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_would_be_right(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(fencepost.ConfigurationError, match=told):
        build_settings(**asked)


def test_settings_have_defaults() -> None:
    assert build_settings() == QueueSettings(False, None, Overflow.REJECT, 30_000_000)
    assert build_settings(max_pending=3, overflow="wait", wait=2).wait == 2_000_000


def test_a_queue_is_declared_once() -> None:
    app = fencepost.App("sqlite://")
    app.queue("mail", fair=True)
    app.queue("mail", fair=True)
    with pytest.raises(fencepost.ConfigurationError, match="declared twice"):
        app.queue("mail", fair=False)


@pytest.mark.parametrize("weight", [0, -1, 101, float("nan"), True, "2"])
def test_a_weight_out_of_range_is_refused(weight: Any) -> None:
    app = fencepost.App("sqlite://")
    with pytest.raises(fencepost.ConfigurationError, match=r"from 0\.01 to 100"):
        app.queues.set_weight("mail", "acme", weight)


def test_what_the_code_declares_holds_until_the_database_has_it() -> None:
    known = KnownQueues()
    known.declare("a", QueueSettings(fair=True))
    known.learn({"b": QueueSettings(max_pending=3)})
    assert known.fair == {"a"}
    assert set(known.bounded) == {"b"}
    known.written("a", QueueSettings(fair=True))
    known.learn({"a": QueueSettings()})
    assert known.fair == frozenset()
