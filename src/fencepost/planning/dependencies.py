"""When a job that waits for others may run. Pure; `store.dependencies` writes what this decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fencepost.job import State, When

__all__ = ["circle_in", "is_met", "stricter"]

_STRICTNESS = (When.SUCCESS, When.FAILURE, When.COMPLETION)


def is_met(when: When, state: State | None) -> bool:
    """Whether the end of a job is what its successor asks for; if not, it never will be.

    | asked      | succeeded | failed | cancelled, skipped | deleted |
    | ---------- | --------- | ------ | ------------------ | ------- |
    | success    | yes       | no     | no                 | no      |
    | failure    | no        | yes    | no                 | no      |
    | completion | yes       | yes    | yes                | yes     |

    Args:
        when: what is asked.
        state: a final state; None: the job was deleted, so it had ended, nobody knows how.
    """
    match when:
        case When.SUCCESS:
            return state is State.SUCCEEDED
        case When.FAILURE:
            return state is State.FAILED
        case When.COMPLETION:
            return True


def stricter(one: When, other: When) -> When:
    """Of two things that are asked of one job, the one that says more."""
    return min(one, other, key=_STRICTNESS.index)


def circle_in(waits_for: Mapping[str, Collection[str]]) -> list[str]:
    """Some of the jobs that wait for each other in a circle, in its order; empty: there is none.

    Args:
        waits_for: for each job those that it waits for; those that are no key of it wait for nothing.
    """
    done: set[str] = set()
    for start in waits_for:
        # Depth first without recursion: a chain may be longer than Python's stack.
        path: dict[str, None] = {}
        stack = [(start, iter(waits_for[start]))] if start not in done else []
        path.update(dict.fromkeys([start] if stack else []))
        while stack:
            job, rest = stack[-1]
            following = next((other for other in rest if other in waits_for and other not in done), None)
            if following is None:
                stack.pop()
                done.add(job)
                del path[job]
            elif following in path:
                on_path = list(path)
                return on_path[on_path.index(following) :]
            else:
                path[following] = None
                stack.append((following, iter(waits_for[following])))
    return []
