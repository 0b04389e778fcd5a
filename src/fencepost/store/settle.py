"""Settle: the one guarded write that ends or returns an attempt (J5).

Every settlement is `UPDATE ... WHERE id AND running AND lease_owner AND lease_token`. Its row count is the
answer: 0 means that the lease passed to somebody else, and then nothing at all was written. Why a stale worker can
do no harm: the token grows at every claim and never goes back, so an old attempt's token matches no later one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Update,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Connection

from fencepost.codec import clean_text
from fencepost.job import Backoff, Claim, Lease, Micros, Priority, Reason, State
from fencepost.planning.outcome import Change, Outcome, Verb, bounded_error, next_state
from fencepost.store.demands import encode_limits
from fencepost.store.dialects import Dialect
from fencepost.store.guard import held_by
from fencepost.store.permits import release_permits
from fencepost.store.rooms import release_holdings
from fencepost.store.rows import CLAIM_COLUMNS, unreadable_text
from fencepost.store.tables import jobs, line_of, told_at, word

__all__ = ["CANCEL_REQUESTED", "settle", "undecodable"]

_Value = Callable[[str], ColumnElement[Any]]


_COMPLETE_NAMES = ("_id", "_lease_token", "_lease_owner", "_finished_at", "_result")


def _complete_rows(match: ColumnElement[bool], value: _Value) -> Update:
    """Success, the outcome that nearly every attempt has: few values per row. Served by the primary key.

    All that success means stands here; the state table has every other outcome.
    """
    return (
        update(jobs)
        .where(match, held_by(value("_lease_owner"), value("_lease_token")))
        .values(
            state=word(State.SUCCEEDED),
            reason=null(),
            lease_owner=null(),
            lease_until=null(),
            live_key=null(),
            wake_at=told_at(value("_finished_at")),
            finished_at=value("_finished_at"),
            result=value("_result"),
        )
    )


_CHANGE_NAMES = (
    *("_id", "_lease_token", "_lease_owner", "_state", "_reason", "_attempts", "_line", "_rank", "_wake_at"),
    *("_run_at", "_finished_at", "_last_error", "_history"),
)
_CLEARED = ""  # as a last error: NULL leaves what stands there, so clearing needs a word of its own


def _change_rows(match: ColumnElement[bool], value: _Value) -> Update:
    """Every other outcome. A job that is to be cancelled does not come back: its guard does not hold here."""
    is_final = value("_finished_at").is_not(None)
    return (
        update(jobs)
        .where(
            match,
            held_by(value("_lease_owner"), value("_lease_token")),
            or_(is_final, jobs.c.cancel_requested_at.is_(None)),
        )
        .values(
            state=value("_state"),
            reason=value("_reason"),
            attempts=value("_attempts"),
            line=value("_line"),
            rank=value("_rank"),
            wake_at=case((is_final, told_at(value("_finished_at"))), else_=value("_wake_at")),
            run_at=func.coalesce(value("_run_at"), jobs.c.run_at),
            finished_at=value("_finished_at"),
            last_error=func.nullif(func.coalesce(value("_last_error"), jobs.c.last_error), literal_column("''")),
            history=func.coalesce(value("_history"), jobs.c.history),
            # That of a fixed start is noted ahead of it. Who is given back as it was, or ends before, had none.
            started_at=case(
                (
                    or_(value("_finished_at") < jobs.c.started_at, and_(not_(is_final), value("_reason").is_(None))),
                    null(),
                ),
                else_=jobs.c.started_at,
            ),
            live_key=case((is_final, null()), else_=jobs.c.live_key),
            lease_owner=null(),
            lease_until=null(),
        )
    )


def _reclaim_rows(match: ColumnElement[bool], value: _Value) -> Update:
    """The planner's settlement of a dead attempt: only while the lease is still expired."""
    return _change_rows(match, value).where(jobs.c.lease_until <= value("_lease_until"))


CANCEL_REQUESTED = select(jobs.c.id).where(
    jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.cancel_requested_at.is_not(None)
)


def settle(
    dialect: Dialect,
    conn: Connection,
    settlements: Sequence[tuple[Claim, Outcome]],
    now: Micros,
    *,
    expired_by: Micros | None = None,
    draw: Callable[[], float] = random.random,
) -> list[bool]:
    """End or return attempts, in the connection's transaction: all of them, each guarded by its own lease.

    Args:
        dialect: the database's.
        conn: in a transaction that can write.
        settlements: attempts and what became of them.
        now: the database's clock.
        expired_by: for the planner: only leases that had expired by then.
        draw: the source of the backoff's jitter, in [0, 1).

    Returns:
        For each, whether the lease held. Where it did not, nothing was written.
    """
    held = [False] * len(settlements)
    states = [State.SUCCEEDED] * len(settlements)
    completing: list[tuple[int, tuple[Any, ...]]] = []
    changing: list[tuple[int, tuple[Any, ...]]] = []
    for place, (claim, outcome) in enumerate(settlements):
        lease = claim.lease
        if outcome.verb is Verb.COMPLETE:
            completing.append((place, (lease.job_id, lease.token, lease.owner, now, outcome.result)))
        else:
            change = next_state(claim, _storable(outcome), now, worker=lease.owner, draw=draw())
            states[place] = change.state
            changing.append((place, _change_values(claim, change)))
    if completing:
        _write(dialect, conn, _complete_rows, _COMPLETE_NAMES, completing, held)
    if changing:
        if expired_by is not None:
            rows = [(place, (*row, expired_by)) for place, row in changing]
            _write(dialect, conn, _reclaim_rows, (*_CHANGE_NAMES, "_lease_until"), rows, held)
        else:
            _write(dialect, conn, _change_rows, _CHANGE_NAMES, changing, held)
        refused = [place for place, _ in changing if not held[place]]
        for place in _cancel_instead(dialect, conn, settlements, refused, now, held):
            states[place] = State.CANCELLED
    limited = [place for place, (claim, _) in enumerate(settlements) if claim.limits and held[place]]
    if limited:
        release_holdings(dialect, conn, (settlements[place][0] for place in limited), now)
    constrained = [place for place, (claim, _) in enumerate(settlements) if claim.concurrency and held[place]]
    if constrained:
        release_permits(dialect, conn, ((settlements[place][0], states[place]) for place in constrained), now)
    return held


def _cancel_instead(
    dialect: Dialect,
    conn: Connection,
    settlements: Sequence[tuple[Claim, Outcome]],
    refused: Sequence[int],
    now: Micros,
    held: list[bool],
) -> list[int]:
    """Of the attempts that may not bring their job back, cancel those that somebody asked to cancel.

    Returns:
        Their places.
    """
    returning: dict[str, list[int]] = {}  # two attempts of one job may stand in a group: at most one still holds
    for place in refused:
        if settlements[place][1].is_returning:
            returning.setdefault(settlements[place][0].id, []).append(place)
    if not returning:
        return []
    rows = []
    for (job_id,) in conn.execute(CANCEL_REQUESTED, {"ids": list(returning)}).fetchall():
        for place in returning[str(job_id)]:
            claim, outcome = settlements[place]
            owner = claim.lease.owner
            change = next_state(claim, _storable(outcome), now, worker=owner, draw=0.0, cancel_requested=True)
            rows.append((place, _change_values(claim, change)))
    if rows:
        _write(dialect, conn, _change_rows, _CHANGE_NAMES, rows, held)
    return [place for place, _ in rows]


def _write(
    dialect: Dialect,
    conn: Connection,
    define: Callable[[ColumnElement[bool], _Value], Update],
    names: tuple[str, ...],
    rows: list[tuple[int, tuple[Any, ...]]],
    held: list[bool],
) -> None:
    # In the order of the ids, as the heartbeat does, so that two that lock the same rows seldom wait in a circle;
    # where they do, the database ends one and it is repeated.
    rows.sort(key=lambda entry: entry[1][0])
    answers = dialect.update_rows(conn, define, names, [row for _, row in rows])
    for (place, _), answer in zip(rows, answers, strict=True):
        held[place] = answer


def _storable(outcome: Outcome) -> Outcome:
    """An error's text comes from anywhere, and cannot be refused: the attempt has ended."""
    return outcome if outcome.error is None else outcome._replace(error=clean_text(outcome.error))


def _change_values(claim: Claim, change: Change) -> tuple[Any, ...]:
    """The values of `_CHANGE_NAMES`."""
    error = _CLEARED if change.clears_error else change.last_error
    return (
        claim.lease.job_id,
        claim.lease.token,
        claim.lease.owner,
        change.state.value,
        None if change.reason is None else change.reason.value,
        change.attempts,
        None if change.rank is None else line_of(claim.queue, claim.kind, labels=claim.labels, gate=_gate(claim)),
        change.rank,
        change.wake_at,
        change.run_at,
        change.finished_at,
        None if error is None else bounded_error(error),
        change.history,
    )


def _gate(claim: Claim) -> str | None:
    if claim.concurrency is not None:
        return claim.concurrency.key
    return None if claim.limits is None else encode_limits(claim.limits.rate, claim.limits.resources)


def undecodable(row: Sequence[Any], owner: str, now: Micros, error: Exception) -> tuple[Claim, Outcome]:
    """The settlement that quarantines a claimed row (L6), built from the columns that need no decoding."""
    values = dict(zip(CLAIM_COLUMNS, row, strict=True))
    claim = Claim(
        Lease(str(values["id"]), owner, values["lease_token"]),
        values["kind"],
        values["queue"],
        values["arguments"],
        values["attempts"],
        values["max_attempts"],
        Priority.NORMAL,
        now,
        now,
        None,
        0,
        None,
        None,
        Backoff(),
        True,
        (),
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        now,
    )
    return claim, Outcome(Verb.ABANDON, error=unreadable_text(error), reason=Reason.UNDECODABLE)
