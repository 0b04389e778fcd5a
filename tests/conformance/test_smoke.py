from fencepost.ids import new_id
from fencepost.job import NewJob, Options
from fencepost.store import Store


def test_a_job_is_claimed_and_completed(store: Store) -> None:
    store.enqueue([NewJob(new_id(), "k", "{}", Options())])
    (claim,) = store.claim("me", kinds=["k"])
    assert store.complete(claim)
    assert not store.complete(claim)
