"""Many enqueues at once in one process."""

from __future__ import annotations

import asyncio
import threading

import fencepost
from fencepost.ids import parse_id
from tests.worker.conftest import Working


def test_five_hundred_concurrent_aenqueues_are_all_acknowledged_and_all_run(
    app: fencepost.App, working: Working
) -> None:
    """L1: each is answered after the commit that holds it."""

    @app.job
    async def square(value: int) -> int:
        return value * value

    async def enqueue_all() -> list[int]:
        handles = await asyncio.gather(*(square.aenqueue(value=i) for i in range(500)))
        assert len({handle.id for handle in handles}) == 500
        found = app.store.states_of([handle.id for handle in handles])
        assert len(found) == 500
        return list(await asyncio.gather(*(handle.aresult(timeout=30) for handle in handles)))

    working()
    assert asyncio.run(enqueue_all()) == [i * i for i in range(500)]


def test_a_cancelled_aenqueue_neither_fails_nor_takes_back_the_others(app: fencepost.App) -> None:
    """L1: they share a commit, not a fate."""

    @app.job
    async def quick(value: int) -> None: ...

    async def enqueue_all() -> list[fencepost.JobHandle[None]]:
        tasks = [asyncio.create_task(quick.aenqueue(value=i)) for i in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks[::2], return_exceptions=True)
        return list(await asyncio.gather(*tasks[1::2]))

    handles = asyncio.run(enqueue_all())
    assert len(app.store.states_of([handle.id for handle in handles])) == 25


def test_enqueues_from_many_threads_are_all_acknowledged(app: fencepost.App, working: Working) -> None:
    """L1, J1: and of one identity there is one job."""

    @app.job
    def work(value: int) -> int:
        return value

    handles: list[fencepost.JobHandle[int]] = []
    shared: list[fencepost.JobHandle[int]] = []
    failures: list[BaseException] = []
    together = threading.Barrier(16)

    def produce(number: int) -> None:
        try:
            together.wait(20)
            for i in range(20):
                handles.append(work.enqueue(value=number * 100 + i))
                shared.append(work.using(key="shared", delay=60).enqueue(value=number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len({handle.id for handle in handles}) == 320
    assert all(parse_id(handle.id) for handle in handles)
    assert len({handle.id for handle in shared}) == 1
    assert sum(handle.created for handle in shared) == 1
    working()
    expected = sorted(number * 100 + i for number in range(16) for i in range(20))
    assert sorted(handle.result(timeout=30) for handle in handles) == expected
