from __future__ import annotations

import pytest

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.retention import Keep, Kept, to_keep

METRICS = {"a": 3.0, "b": 1.0, "c": None, "d": float("nan"), "e": 2.0, "f": 1.0}
ITEMS = [Kept(name, 100.0 - 10 * number, metric) for number, (name, metric) in enumerate(METRICS.items())]


def kept(**rules):
    return "".join(name for name, reason in to_keep(ITEMS, Keep(**rules), {}).items() if reason)


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ({"last": 1}, "f"),
        ({"last": 3}, "def"),
        ({"last": 99}, "abcdef"),
        ({"best": 1}, "f"),  # of equals the newer
        ({"best": 3}, "bef"),
        ({"best": 1, "mode": "max"}, "af"),
        ({"best": 99}, "abef"),
        ({"every": 2}, "acef"),
        ({"every": 4}, "aef"),
        ({"younger_than_seconds": 61.0}, "ef"),
        ({"younger_than_seconds": 1.0}, "f"),
        ({"last": 2, "every": 3, "best": 2}, "abdef"),
    ],
)
def test_each_rule_keeps_something_and_the_newest_always_stays(rules, names):
    assert kept(**rules) == names


def test_what_is_protected_stays_with_its_reason():
    assert to_keep(ITEMS, Keep(last=1), {"b": "being read", "x": "not there"}) == {
        "a": "",
        "b": "being read",
        "c": "",
        "d": "",
        "e": "",
        "f": "the newest",
    }
    assert to_keep([], Keep(last=1), {}) == {}


@pytest.mark.parametrize(
    "rules", [{}, {"last": -1}, {"mode": "best", "last": 1}, {"last": 1, "younger_than_seconds": -1}]
)
def test_rules_that_keep_nothing_or_are_impossible_are_refused(rules):
    with pytest.raises(DeclarationError):
        Keep(**rules)
