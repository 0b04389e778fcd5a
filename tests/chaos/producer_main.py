"""A producer as a process of its own: enqueues one by one and in bulk, and prints the ids that were acknowledged."""

from __future__ import annotations

import argparse

from tests.chaos import handlers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--single", type=int, default=0)
    parser.add_argument("--bulk", type=int, default=0)
    parser.add_argument("--bulk-size", type=int, default=500)
    parser.add_argument("--delayed", type=int, default=0)
    asked = parser.parse_args()
    bulk = [handlers.quick.build(name=f"{asked.name}-bulk-{i}") for i in range(asked.bulk)]
    bulk += [
        handlers.quick.using(delay=0.5 + i % 20 / 10).build(name=f"{asked.name}-delayed-{i}")
        for i in range(asked.delayed)
    ]
    batches = [bulk[start : start + asked.bulk_size] for start in range(0, len(bulk), asked.bulk_size)]
    every = max(1, asked.single // (len(batches) + 1))
    for i in range(asked.single):
        print(handlers.quick_thread.enqueue(name=f"{asked.name}-single-{i}").id, flush=True)
        if i % every == 0 and batches:
            for handle in handlers.app.enqueue_many(batches.pop()):
                print(handle.id)
    for batch in batches:
        for handle in handlers.app.enqueue_many(batch):
            print(handle.id)
    handlers.app.close()


if __name__ == "__main__":
    main()
