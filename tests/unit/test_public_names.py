"""The public face: what is named is there, and what is drawn is true."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import TypeVar

import pytest

import fencepost
from fencepost import errors


def test_all_public_names_are_importable_and_nothing_else_is_public() -> None:
    public = {name for name in vars(fencepost) if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(fencepost, name))}
    assert public - modules == set(fencepost.__all__) - {"__version__"}
    assert fencepost.__all__ == sorted(fencepost.__all__)


MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(fencepost.__path__, "fencepost.")
    if ".migrations." not in found.name and not found.name.endswith("__main__")  # run by Alembic, or as a program
)


@pytest.mark.parametrize("name", MODULES)
def test_every_modules_all_names_what_it_defines(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    assert [missing for missing in names if not hasattr(module, missing)] == []


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?=\s|$)", line)
        if found and found[2] != "Outcome":
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            drawn[found[2]] = path[depth - 1] if depth else ""
    actual = {
        name: error.__bases__[0].__name__ if error is not errors.FencepostError else ""
        for name, error in vars(errors).items()
        if inspect.isclass(error) and issubclass(error, errors.FencepostError)
    }
    assert drawn == actual


def test_the_signals_are_those_that_are_named_and_are_no_errors() -> None:
    (line,) = re.findall(r"Outcome signals: (.*)", errors.__doc__ or "")
    signals = {
        name
        for name, signal in vars(errors).items()
        if inspect.isclass(signal) and issubclass(signal, errors.Signal) and signal is not errors.Signal
    }
    assert set(line.split(", ")) == signals
    assert not any(issubclass(getattr(errors, name), errors.FencepostError) for name in signals)


def test_every_error_and_signal_is_public() -> None:
    for name in errors.__all__:
        if name != "Signal":
            assert getattr(fencepost, name) is getattr(errors, name)


def test_errors_can_be_caught_as_what_they_also_are() -> None:
    assert issubclass(errors.EnqueueError, ValueError)
    assert issubclass(errors.JobNotFound, LookupError)
    assert issubclass(errors.ResultTimeout, TimeoutError)


def test_a_name_means_one_thing() -> None:
    """No two modules define a public class, or a public alias of a type, under the same name."""
    places: dict[str, set[str]] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            value = getattr(module, public)
            if public[0].isupper() and not public.isupper() and not isinstance(value, TypeVar):
                home = value.__module__ if inspect.isclass(value) else name
                places.setdefault(public, set()).add(f"{home}: {value!r}")
    assert {public: sorted(homes) for public, homes in places.items() if len(homes) > 1} == {}
