"""The one predicate that proves a lease."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_

from fencepost.job import State
from fencepost.store.tables import jobs, word

__all__ = ["held_by"]


def held_by(owner: Any, token: Any) -> ColumnElement[bool]:
    """Running, with this owner and this token: settle, heartbeat, release, blocking and progress all rest on it."""
    return and_(jobs.c.state == word(State.RUNNING), jobs.c.lease_owner == owner, jobs.c.lease_token == token)
