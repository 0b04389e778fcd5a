"""What a bounded queue lets in, and who has to go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.planning.overflow import longest_first, room_for
from fencepost.queue import Overflow, QueueSettings


@given(st.integers(1, 50), st.integers(0, 60), st.integers(1, 60), st.booleans())
def test_no_more_are_let_in_than_there_is_room_for(bound: int, pending: int, asked: int, may_wait: bool) -> None:
    for overflow in (Overflow.WAIT, Overflow.REJECT):
        room = room_for(QueueSettings(max_pending=bound, overflow=overflow), pending, asked, may_wait=may_wait)
        assert 0 <= room <= asked
        assert room == 0 or pending + room <= bound
        if overflow is Overflow.REJECT or not may_wait:
            assert room in (0, asked)


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 30), st.sampled_from([0.5, 1.0, 2.0])), min_size=1),
    st.integers(0, 200),
)
def test_the_longest_lines_for_their_weight_lose_first(waiting: dict[int, tuple[int, float]], excess: int) -> None:
    losses = longest_first(waiting, excess)
    assert sum(losses.values()) == min(excess, sum(count for count, _ in waiting.values()))
    for line, lost in losses.items():
        count, weight = waiting[line]
        assert lost <= count
        for other, (others, its_weight) in waiting.items():  # who lost stood no shorter before its last loss
            assert (count - lost + 1) / weight >= (others - losses.get(other, 0)) / its_weight - 1e-9
