"""Labels: what a job needs of its worker, and what a worker has. Both are names with values, compared exactly.

A worker may take a job if every label of the job is among its own, with the same value. A job's labels are stored as
canonical JSON, so that equal ones are equal texts: jobs of equal needs stand in the same line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache

from fencepost.errors import ConfigurationError

__all__ = ["MOST_LABELS", "NO_LABELS", "LabelSet", "check_labels", "encode_labels", "label_set", "label_words"]

LabelSet = frozenset[tuple[str, str]]
"""Labels as pairs of name and value: `needs <= has` says whether a worker may take a job."""

NO_LABELS: LabelSet = frozenset()

MOST_LABELS = 20
"""Of one job, or of one worker."""

_VALUE_CHARS = 100
# No quotes and no backslash: a name and its value are found in the JSON text by their own JSON.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def check_labels(value: object) -> dict[str, str]:
    """Labels as a program names them: `{"gpu": "a100"}`.

    Args:
        value: a mapping of at most 20 names (1 to 63 ASCII letters, digits, `.`, `_`, `-` and `/`, with a letter or
            digit at either end) to values (1 to 100 characters, no control characters, no spaces at the ends).

    Raises:
        ConfigurationError: anything else; the text says what would be right.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f'labels is a dict of names and values, {{"gpu": "a100"}}; not {value!r}')
    if len(value) > MOST_LABELS:
        raise ConfigurationError(f"there are at most {MOST_LABELS} labels, not {len(value)}")
    for name, text in value.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                "a label's name has 1 to 63 characters: ASCII letters, digits, '.', '_', '-' and '/', with a letter or "
                f"a digit at either end; {name!r} has others"
            )
        if not isinstance(text, str) or not text:
            raise ConfigurationError(f"the label {name} has a non-empty string as its value, not {text!r}")
        if len(text) > _VALUE_CHARS:
            raise ConfigurationError(
                f"a label's value has at most {_VALUE_CHARS} characters; that of {name} has {len(text)}"
            )
        if _UNPRINTABLE.search(text) or text != text.strip():
            raise ConfigurationError(
                f"a label's value has no control characters and no spaces at its ends; {name}={text!r} has"
            )
    return dict(value)


def encode_labels(labels: Mapping[str, str]) -> str | None:
    """Checked labels as the one text that stands for them; None where there are none."""
    if not labels:
        return None
    return json.dumps(dict(labels), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=1024)
def label_set(text: str | None) -> LabelSet | None:
    """The pairs of a stored text; None where it cannot be read, so that no worker has them."""
    if text is None:
        return NO_LABELS
    try:
        stored = json.loads(text)
    except ValueError:
        return None
    return frozenset(stored.items()) if _is_labels(stored) else None


def _is_labels(stored: object) -> bool:
    return isinstance(stored, dict) and all(isinstance(value, str) for value in stored.values())


def label_words(text: str | None) -> str:
    """A stored text for people: `gpu=a100, zone=eu`, or as it stands where it cannot be read."""
    found = label_set(text)
    return str(text) if found is None else ", ".join(f"{name}={value}" for name, value in sorted(found))
