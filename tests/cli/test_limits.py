"""`fencepost limits`, and what `jobs` and `doctor` say of those who wait."""

from __future__ import annotations

from fencepost.job import Concurrency, Rate
from fencepost.store import Gate, Store
from fencepost.store.diagnosis import Level
from fencepost.testing import VirtualClock
from tests.cli.conftest import Run
from tests.cli.test_doctor import found
from tests.jobs import new, overwrite, put


def test_limits_are_set_listed_changed_and_deleted(run: Run, at: str) -> None:
    assert run("limits", "set-bucket", "api", "--rate", "2.5", "--burst", "4", "--url", at).code == 0
    assert run("limits", "set-semaphore", "gpu", "--capacity", "8", "--url", at).code == 0
    assert run("limits", "set-rate", "acme", "--rate", "5", "--url", at).code == 0
    said = run("limits", "set-concurrency", "user-7", "--slots", "3", "--url", at)
    assert "concurrency user-7: slots 3, 3 free, 0 jobs waiting." in said.out
    changed = run("limits", "set-semaphore", "gpu", "--capacity", "2", "--url", at, "--json").json
    assert (changed["kind"], changed["name"], changed["capacity"], changed["free"]) == ("semaphore", "gpu", 2, 2)

    listed = run("limits", "list", "--url", at, "--json").json
    assert [(one["kind"], one["name"]) for one in listed] == [
        ("bucket", "api"),
        ("rate", "acme"),
        ("semaphore", "gpu"),
        ("concurrency", "user-7"),
    ]
    assert "rate 2.5, burst 4" in run("limits", "list", "--url", at).out
    assert run("limits", "delete", "user-7", "--kind", "concurrency", "--url", at, "--json").json["deleted"]
    again = run("limits", "delete", "user-7", "--kind", "concurrency", "--url", at)
    assert (again.code, again.out.strip()) == (1, "No concurrency 'user-7' is declared.")


def test_what_cannot_be_is_refused_with_what_would_be_right(run: Run, at: str) -> None:
    refused = run("limits", "set-bucket", "api", "--rate", "0", "--url", at)
    assert refused.code == 1
    assert "a rate is a number of tokens a second, above 0" in refused.err
    assert "kind is one of" in run("limits", "delete", "api", "--kind", "bucket", "--url", at).err


def test_a_blocked_job_says_what_it_waits_for(run: Run, at: str, kept: Store) -> None:
    put(kept, concurrency=Concurrency("user-7"))
    kept.enqueue(
        [new(concurrency=Concurrency("user-7")), new(rate=Rate("acme", 0.001, 1)), new(rate=Rate("acme", 0.001, 1))]
    )
    kept.claim("me", kinds=["k"], limit=10)
    listed = run("jobs", "list", "--url", at, "--state", "blocked", "--json").json
    assert {job["waits_for"] for job in listed} == {"concurrency key 'user-7'", "rate 'acme'"}
    assert "waits for" in run("jobs", "list", "--url", at, "--state", "blocked").out
    assert "waits for" in run("jobs", "show", listed[0]["id"], "--url", at).out


def test_the_doctor_finds_what_is_waited_for_in_vain(store: Store, clock: VirtualClock) -> None:
    absent = put(store, resources=(("nowhere", 1),)).id
    store.declare_capacity(Gate.RESOURCE, "gpu", 2)
    put(store, resources=(("gpu", 3),))
    store.claim("me", kinds=["k"], limit=10)
    assert found(store, "resources").level is Level.OK  # not for long yet
    clock.advance(60)
    finding = found(store, "resources")
    assert (finding.level, "1 job for 'nowhere'" in finding.what) == (Level.PROBLEM, True)
    finding = found(store, "demands")
    assert (finding.level, "1 job for 3 of 'gpu'" in finding.what) == (Level.PROBLEM, True)
    assert found(store, "permits").level is Level.OK
    overwrite(store, absent, limits='{"resources":{"gpu":1}}')
    store.declare_capacity(Gate.RESOURCE, "gpu", 3)
    assert found(store, "demands").level is Level.OK
