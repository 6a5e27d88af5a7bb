"""Who may pass whom: tables over devices, waiters ahead and declared time limits."""

from __future__ import annotations

import math

import pytest

from airflow_tf.core.devices import Device, DeviceRequest, Health, Reading
from airflow_tf.core.matching import Offer, count_parts, suits
from airflow_tf.core.queue import Place, Use, Waiter, offers_behind

NOW = 100.0
GIB = 2**30


def place(number, *uses, name="small", held="", health=Health.FREE, percent=100):
    """A device; each of ``uses`` is the second at which a holder of ``percent`` of it ends."""
    device = Device(f"d{number}", "gpu", name, number, f"d{number}", 80 * GIB)
    taken = percent * len(uses)
    obstacle = "held" if taken == 100 and percent == 100 else ""
    offer = Offer(Reading(device, health), taken, takers="a holder" if uses else "", obstacle=obstacle or held)
    return Place(offer, tuple(Use(-math.inf, end, percent) for end in uses))


def waiter(replicas, limit=None, label="w", **demands):
    return Waiter(label, DeviceRequest(kind="gpu", **demands), replicas, 34.0, limit)


def left(places, ahead, limit=None, **demands):
    """Return the devices that are left for a gang, with how many parts of each."""
    request = DeviceRequest(kind="gpu", **demands)
    offers = offers_behind(ahead, places, request, limit, NOW)
    suitable = [offer for offer in offers if suits(offer.reading.device, request)]
    found = {offer.reading.device.uuid: count_parts(offer, request) for offer in suitable}
    return {uuid: parts for uuid, parts in found.items() if parts}


FOREVER = math.inf


@pytest.mark.parametrize(
    ("case", "places", "ahead", "limit", "expected"),
    [
        ("nobody waits", [place(0), place(1)], [], None, {"d0", "d1"}),
        ("enough is left for all", [place(0), place(1), place(2)], [waiter(2)], None, {"d2"}),
        ("each of two has its own", [place(0), place(1), place(2)], [waiter(1), waiter(2)], None, set()),
        ("what is free is kept for who waits for more", [place(0), place(1, FOREVER)], [waiter(2)], None, set()),
        ("also from who would end soon", [place(0), place(1, FOREVER)], [waiter(2)], 1.0, set()),
        ("who ends before the moment passes", [place(0), place(1, 160.0)], [waiter(2)], 60.0, {"d0"}),
        ("who ends after it does not", [place(0), place(1, 160.0)], [waiter(2)], 60.1, set()),
        ("who promises nothing does not", [place(0), place(1, 160.0)], [waiter(2)], None, set()),
        (
            "enough is left at the moment",
            [place(0), place(1), place(2, 160.0), place(3, 160.0)],
            [waiter(3)],
            None,
            {"d1"},
        ),
        (
            "the moment is when the last of enough ends",
            [place(0), place(1, 130.0), place(2, 190.0)],
            [waiter(3)],
            90.0,
            {"d0"},
        ),
        (
            "the second in the queue is not delayed by the third either",
            [place(0), place(1, 150.0)],
            [waiter(2, limit=50.0), waiter(2)],
            90.0,
            set(),
        ),
        (
            "what is sick is neither left nor counted on",
            [place(0), place(1, FOREVER, held="sick")],
            [waiter(1)],
            None,
            set(),
        ),
    ],
)
def test_what_is_left(case, places, ahead, limit, expected):
    assert set(left(places, ahead, limit)) == expected, case


def test_devices_that_the_waiter_cannot_use_are_left():
    places = [place(0, name="A100"), place(1), place(2, FOREVER, name="A100")]
    assert left(places, [waiter(2, names=("A100",))]) == {"d1": 1}


def test_what_the_later_one_cannot_use_is_kept_first():
    places = [place(0, name="A100"), place(1)]
    assert left(places, [waiter(1)], names=("A100",)) == {"d0": 1}
    assert left(places, [waiter(1)], names=("small",)) == {"d1": 1}


def test_a_waiter_whose_devices_are_read_as_busy_keeps_none():
    places = [place(0, FOREVER, held="busy", health=Health.BUSY), place(1, name="A100")]
    assert left(places, [waiter(1, names=("small",))]) == {"d1": 1}


def test_shares_are_kept_beside_shares():
    assert left([place(0)], [waiter(1, share_percent=50)], share_percent=50) == {"d0": 1}
    assert left([place(0)], [waiter(2, share_percent=50)], share_percent=50) == {}
    assert left([place(0, FOREVER, percent=50)], [waiter(1, share_percent=50)], share_percent=25) == {}
    assert left([place(0, 150.0, percent=50)], [waiter(1)], limit=50.0, share_percent=50) == {"d0": 1}
    assert left([place(0, 150.0, percent=50)], [waiter(1)], limit=51.0, share_percent=50) == {}


def test_the_replicas_of_a_waiter_have_distinct_devices():
    places = [place(0), place(1)]
    assert left(places, [waiter(1, per_replica=2, share_percent=50)], share_percent=50) == {"d0": 1, "d1": 1}


def test_a_device_that_is_kept_names_for_whom():
    (offer,) = offers_behind([waiter(1, label="flights / run x / train")], [place(0)], DeviceRequest(), None, NOW)
    assert offer.obstacle == "d0 kept for flights / run x / train"
    (offer,) = offers_behind(
        [waiter(1, label="a", share_percent=50)], [place(0)], DeviceRequest(share_percent=50), None, 0
    )
    assert (offer.obstacle, offer.taken_percent, offer.takers) == ("", 50, "kept for a")


def test_a_waiter_says_what_it_waits_for():
    assert str(waiter(1, per_replica=2, label="a")) == "before it in the queue: a (2 devices, waiting 34 s)"
    assert "(1 device, " in str(waiter(1))
