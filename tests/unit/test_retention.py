"""Retention as values: which final jobs go, and how large a batch may be."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost import ConfigurationError, Retention, State
from fencepost.planning.leading import Term
from fencepost.planning.retention import Final, Tally, newest_that_may_go, next_batch
from fencepost.retention import Rule, build_rules

FINAL = ("succeeded", "failed", "cancelled", "skipped")
finals = st.builds(
    Final, st.just("id"), st.sampled_from("abc"), st.sampled_from([*FINAL, "of a newer version"]), st.integers(0, 100)
)
rules_of_a_queue = st.dictionaries(
    st.sampled_from([State(word) for word in FINAL]),
    st.builds(Rule, st.none() | st.integers(0, 100), st.none() | st.integers(0, 5)),
)
every_rule = st.dictionaries(st.sampled_from("ab*"), rules_of_a_queue)


@given(st.lists(finals), every_rule)
def test_what_stays_is_young_enough_and_not_too_much_and_what_goes_is_not(jobs: list[Final], rules: Any) -> None:
    now = 100
    tally = Tally(rules, now)
    newest_first = sorted(jobs, key=lambda job: -job.finished_at)
    stay: Counter[tuple[str, str]] = Counter()
    for job in newest_first:
        rule = rules.get(job.queue, rules.get("*", {})).get(job.state)
        goes = tally.goes(job)
        place = (job.queue, job.state)
        if rule is None:
            assert not goes
            continue
        too_old = rule.age is not None and now - job.finished_at > rule.age
        enough = rule.keep is not None and stay[place] >= rule.keep
        assert goes == (too_old or enough)
        stay[place] += not goes


@given(st.lists(finals), every_rule)
def test_nothing_goes_that_ended_at_or_after_where_the_walk_begins(jobs: list[Final], rules: Any) -> None:
    start = newest_that_may_go(rules, 100)
    tally = Tally(rules, 100)
    for job in sorted(jobs, key=lambda job: -job.finished_at):
        if tally.goes(job):
            assert start is not None
            assert job.finished_at < start


@given(st.integers(10, 1000), st.floats(0, 100))
def test_a_batch_shrinks_where_it_was_slow_and_stays_within_its_bounds(batch: int, took: float) -> None:
    after = next_batch(batch, took)
    assert 10 <= after <= 1000
    assert (after < batch or after == 10) if took > 0.1 else after >= batch


def test_a_retention_is_durations_and_counts_by_state() -> None:
    asked = Retention(succeeded=timedelta(days=1), failed=30, keep={"failed": 5, "skipped": 0})
    assert asked.rules == {
        State.SUCCEEDED: Rule(86_400_000_000, None),
        State.FAILED: Rule(30_000_000, 5),
        State.SKIPPED: Rule(None, 0),
    }
    assert Retention(keep=7).rules == {State(word): Rule(None, 7) for word in FINAL}
    assert build_rules(asked) == {"*": asked.rules}


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"succeeded": -1}, "succeeded is between 0 seconds"),
        ({"failed": "7d"}, "failed is a number of seconds or a timedelta"),
        ({"keep": -1}, "keep is a whole number"),
        ({"keep": {"succeeded": True}}, "keep is a whole number"),
        ({"keep": {"ready": 3}}, "keep is by final state"),
    ],
)
def test_what_cannot_be_kept_is_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Retention(**how)


def test_rules_are_of_queues() -> None:
    for wrong in (5, {"mail": 5}, [Retention()]):
        with pytest.raises(ConfigurationError, match="or one a queue"):
            build_rules(wrong)  # type: ignore[arg-type]


def test_a_term_is_renewed_at_a_third_of_the_lease_and_ends_with_it() -> None:
    term = Term(100.0, 6.0)
    assert (term.renews_at, term.ends_at) == (102.0, 106.0)
