"""A program that forks after it has used its app: `python -m tests.chaos.fork_main os|multiprocessing|within JOBS`.

Four children each enqueue their jobs, and run a worker until the queue is empty; the parent, whose threads enqueue
while it forks, goes on enqueueing, and ends first. Each process prints the ids that were acknowledged to it, and a
last word. With `within`, it forks one child in the middle of a transaction.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable

from tests.chaos import handlers

CHILDREN = 4
THREAD_JOBS = 40


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _enqueue(name: str, jobs: int) -> None:
    for i in range(jobs):
        _say("id", handlers.quick_thread.enqueue(name=f"{name}-{i}").id)


def _child(name: str, jobs: int) -> None:
    _say("pid", os.getpid())
    try:
        _enqueue(name, jobs)
        worker = handlers.app.worker(lease=5, poll=0.05, burst=True, concurrency=8)
        _say("owner", worker.owner)
        worker.run()
        _say("done", name)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        handlers.app.close()


def _fork(body: Callable[[str, int], None], name: str, jobs: int) -> None:
    if os.fork() == 0:
        code = 1
        try:
            body(name, jobs)
            code = 0
        finally:
            os._exit(code)


def main() -> None:
    how, jobs = sys.argv[1], int(sys.argv[2])
    _enqueue("parent-before", 5)
    if how == "within":
        with handlers.app.store.transaction():
            _fork(_child, "within", jobs)
        _enqueue("parent-after", 5)
        handlers.app.close()
        return
    threads = [threading.Thread(target=_enqueue, args=(f"parent-thread-{i}", THREAD_JOBS)) for i in range(2)]
    for thread in threads:
        thread.start()
    for number in range(CHILDREN):
        name = f"child-{number}"
        if how == "os":
            _fork(_child, name, jobs)
        else:
            # Not started through Process.start(): a parent that ends first must not wait for its children.
            context = multiprocessing.get_context("fork")
            process = context.Process(target=_child, args=(name, jobs))
            process.start()
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    _enqueue("parent-after", 20)
    for thread in threads:
        thread.join()
    handlers.app.close()
    _say("done", "parent")


if __name__ == "__main__":
    main()
