"""Which devices serve a request: by tables, and against every possible assignment."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.devices import Device, DeviceRequest, Health, Reading
from airflow_tf.core.errors import DevicesNeverFitError
from airflow_tf.core.ledger import Refused
from airflow_tf.core.matching import Offer, choose, count_places

GIB = 2**30
A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"


def offer(
    uuid, *, kind="gpu", name=A100, memory=40 * GIB, health=Health.FREE, reason="", free=None, load=None, held=0, **more
):
    visible = more.pop("visible", uuid)
    index = more.pop("index", int(uuid[-1]) if uuid[-1].isdigit() else 0)
    device = Device(uuid, kind, name, index, visible, memory)
    return Offer(Reading(device, health, reason, free, load, held), **more)


def match(offers, *, replicas=1, missing=None, others=(), **request):
    missing = replicas if missing is None else missing
    answer = choose("g", DeviceRequest(**request), replicas, missing, offers, "h", others)
    return answer if isinstance(answer, Refused) else [[device.uuid for device in part] for part in answer]


def test_exclusive_devices_are_taken_in_the_order_of_their_index_and_side_by_side():
    offers = [offer("GPU-2"), offer("GPU-0"), offer("GPU-3"), offer("GPU-1")]
    assert match(offers, replicas=2, per_replica=2) == [["GPU-0", "GPU-1"], ["GPU-2", "GPU-3"]]


def test_a_replica_without_devices_gets_none():
    assert match([], replicas=2, per_replica=0) == [[], []]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"kind": "gpu"}, "GPU-0"),
        ({"kind": "auto", "names": ("*T4*",)}, "GPU-1"),
        ({"names": ("*V100*", "Tesla*")}, "GPU-1"),
        ({"uuids": ("GPU-1",)}, "GPU-1"),
        ({"kind": "static"}, "npu-2"),
        ({"min_free_bytes": 30 * GIB, "names": ("NVIDIA*",)}, "GPU-0"),
        ({"max_utilization_percent": 10}, "GPU-1"),
    ],
)
def test_only_devices_that_suit_are_taken(request_, expected):
    offers = [
        offer("GPU-0", load=11, free=40 * GIB),
        offer("GPU-1", name=T4, memory=16 * GIB, free=16 * GIB, load=10),
        offer("npu-2", kind="static", name="NPU", memory=None),
    ]
    assert match(offers, **request_) == [[expected]]


@pytest.mark.parametrize(
    "found",
    [
        offer("GPU-0", memory=None, free=None),
        offer("GPU-0", load=None),
    ],
)
def test_what_a_device_does_not_report_is_no_hindrance(found):
    assert match([found], min_free_bytes=10 * GIB, max_utilization_percent=5) == [["GPU-0"]]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (offer("GPU-0", obstacle="GPU-0 held by f / r / train[0] since 12:04 UTC"), "GPU-0 held by f / r / train[0]"),
        (offer("GPU-0", health=Health.BUSY, reason="used by pid 7 (user ann)"), "GPU-0 busy: used by pid 7 (user ann)"),
        (offer("GPU-0", health=Health.UNHEALTHY, reason="lost: fell off the bus"), "GPU-0 unhealthy: lost"),
        (offer("GPU-0", health=Health.UNKNOWN), "GPU-0 unknown: no reason given"),
        (offer("GPU-0", free=5 * GIB), "GPU-0: 5.0 GiB of 10.0 GiB memory free"),
        (offer("GPU-0", load=31), "GPU-0: its utilization of 31 % is above 30 %"),
        (offer("GPU-0", taken_percent=50, takers="f / r / train[1]"), "GPU-0: 50 % of it held by f / r / train[1]"),
        (offer("GPU-0", held=20, reason="20 % of it held by pid 9"), "GPU-0: 20 % of it held by pid 9"),
        (offer("unidentified", visible="", health=Health.UNKNOWN, reason="hangs"), "unidentified unknown: hangs"),
    ],
)
def test_what_is_busy_now_is_waited_for_with_the_reason(found, reason):
    answer = match([found], min_free_bytes=10 * GIB, max_utilization_percent=30)
    assert (answer.wanted, answer.free) == (1, 0)
    assert answer.reasons[0].startswith(reason)


def test_all_or_nothing():
    answer = match([offer("GPU-0"), offer("GPU-1", obstacle="GPU-1 held by x")], replicas=2)
    assert answer == Refused(2, 1, ("GPU-1 held by x",))


def test_a_blind_reading_may_stand_for_any_number_of_devices():
    answer = match([offer("unidentified", visible="", health=Health.UNKNOWN)], replicas=8, kind="gpu", uuids=("GPU-7",))
    assert isinstance(answer, Refused)


@pytest.mark.parametrize(
    ("offers", "request_", "text"),
    [
        ([offer("GPU-0")], {"replicas": 2}, "g wants 2 devices of kind gpu: host h has 1"),
        ([], {}, "g wants 1 devices of kind auto: host h has 0"),
        ([offer("GPU-0")], {"kind": "cpu"}, "kind cpu: host h has 0"),
        ([offer("GPU-0")], {"min_free_bytes": 80 * GIB}, "with at least 80.0 GiB: host h has 0"),
        ([offer("GPU-0")], {"names": ("*H100*", "*H200*")}, r"named \*H100\* or \*H200\*: host h has 0"),
        ([offer("GPU-0")], {"uuids": ("GPU-0", "GPU-9")}, "wants GPU-9: host h knows only GPU-0"),
        ([offer("GPU-0"), offer("GPU-1")], {"uuids": ("GPU-0",), "replicas": 2}, "out of GPU-0: host h has 1"),
        ([offer("GPU-0")], {"share_percent": 50, "replicas": 3}, "wants 3 shares of 50 % of devices.* host h has 2"),
        ([offer("GPU-0")], {"share_percent": 25, "per_replica": 2, "replicas": 2}, "wants 4 shares .* host h has 2"),
        ([offer("GPU-0")], {"share_percent": 25, "min_free_bytes": 11 * GIB}, "host h has 0"),
        ([offer("GPU-0"), offer("GPU-1")], {"per_host": 1, "replicas": 2}, "its per_host allows at most 1"),
        ([offer("GPU-0", obstacle="held")], {"replicas": 2}, "host h has 1"),
    ],
)
def test_what_the_host_can_never_serve_fails_at_once_with_its_numbers(offers, request_, text):
    with pytest.raises(DevicesNeverFitError, match=text):
        match(offers, **request_)


def test_the_error_names_the_host_that_could_serve_the_request_or_the_best():
    with pytest.raises(DevicesNeverFitError, match="Run it on big, which can serve it"):
        match([offer("GPU-0")], replicas=3, others=[("small", 2), ("big", 3)])
    with pytest.raises(DevicesNeverFitError, match=r"No other host has more than 2 \(small\)"):
        match([offer("GPU-0")], replicas=3, others=[("tiny", 0), ("small", 2)])


def test_a_uuid_of_another_host_may_be_listed_beside_one_of_this_host():
    assert match([offer("GPU-0")], uuids=("GPU-0", "GPU-9"), others=[("b", 1)]) == [["GPU-0"]]


def test_shares_are_packed_onto_devices_that_are_shared_already():
    offers = [offer("GPU-0"), offer("GPU-1", taken_percent=50), offer("GPU-2", taken_percent=25)]
    assert match(offers, replicas=3, share_percent=25) == [["GPU-1"], ["GPU-1"], ["GPU-2"]]


def test_replicas_of_one_gang_share_a_device():
    assert match([offer("GPU-0")], replicas=3, share_percent=33) == [["GPU-0"]] * 3


def test_the_devices_of_one_replica_are_distinct_also_when_shared():
    answer = match([offer("GPU-0"), offer("GPU-1"), offer("GPU-2")], replicas=3, per_replica=2, share_percent=50)
    assert all(len(set(part)) == 2 for part in answer)
    assert max(Counter(uuid for part in answer for uuid in part).values()) == 2


def test_shares_that_another_installation_has_locked_count_and_own_confirmed_ones_count_once():
    foreign = offer("GPU-0", held=50)
    assert match([foreign], share_percent=50) == [["GPU-0"]]
    assert match([foreign], share_percent=51).free == 0
    own = offer("GPU-0", held=50, taken_percent=50, confirmed_percent=50)
    assert match([own], share_percent=50) == [["GPU-0"]]
    both = offer("GPU-0", held=80, taken_percent=50, confirmed_percent=50)
    assert match([both], share_percent=50).free == 0


def test_a_device_that_lets_only_one_process_on_it_is_not_shared():
    single = offer("GPU-0")
    single = replace(single, reading=replace(single.reading, takes_shares=False))
    assert match([single]) == [["GPU-0"]]
    assert "only one process" in str(match([single], share_percent=50))


def test_free_memory_is_asked_of_a_device_only_while_nobody_shares_it():
    assert match([offer("GPU-0", free=5 * GIB)], share_percent=50, min_free_bytes=10 * GIB).free == 0
    shared = offer("GPU-0", free=5 * GIB, taken_percent=50)
    assert match([shared], share_percent=50, min_free_bytes=10 * GIB) == [["GPU-0"]]
    half_free = offer("GPU-0", free=15 * GIB)
    assert match([half_free], share_percent=50, min_free_bytes=10 * GIB) == [["GPU-0"]]
    assert match([half_free], share_percent=50, min_free_bytes=10 * GIB, replicas=2).free == 1


def test_replicas_that_have_their_devices_count_for_what_fits_but_take_nothing_again():
    offers = [offer("GPU-0", obstacle="GPU-0 held by g[0]"), offer("GPU-1")]
    assert match(offers, replicas=2, missing=1) == [["GPU-1"]]
    with pytest.raises(DevicesNeverFitError):
        match(offers, replicas=3, missing=1)


def test_places_of_an_idle_host_are_counted_as_for_this_one():
    devices = [offer("GPU-0").reading.device, offer("GPU-1", name=T4).reading.device]
    assert count_places(devices, DeviceRequest(share_percent=30), 8) == 6
    assert count_places(devices, DeviceRequest(share_percent=30, names=("*T4",)), 2) == 2


OFFERS = st.lists(
    st.tuples(
        st.sampled_from([None, 8, 16]),
        st.sampled_from([Health.FREE, Health.FREE, Health.FREE, Health.BUSY]),
        st.sampled_from([None, 3, 8]),
        st.sampled_from([None, 0, 50]),
        st.sampled_from([0, 0, 25, 50, 100]),
        st.sampled_from([0, 0, 25, 50]),
    ),
    max_size=4,
)


def feasible(capacity, per_replica, missing):
    """Try every choice of distinct devices for one replica after the other."""
    if not missing:
        return True
    for choice in combinations([uuid for uuid, parts in capacity.items() if parts], per_replica):
        rest = {uuid: parts - (uuid in choice) for uuid, parts in capacity.items()}
        if feasible(rest, per_replica, missing - 1):
            return True
    return False


@given(
    rows=OFFERS,
    share=st.sampled_from([100, 100, 50, 33, 25]),
    per_replica=st.integers(1, 2),
    missing=st.integers(1, 4),
    limits=st.sampled_from([{}, {"min_free_bytes": 4}, {"max_utilization_percent": 10}]),
)
def test_devices_are_found_if_and_only_if_some_assignment_exists_and_none_is_over_full(
    rows, share, per_replica, missing, limits
):
    offers, now, idle = [], {}, {}
    for number, (memory, health, free, load, taken, foreign) in enumerate(rows):
        uuid = f"GPU-{number}"
        held = min(foreign, 100 - taken) + taken
        offers.append(
            offer(uuid, memory=memory, health=health, free=free, load=load, held=held, taken_percent=taken, confirmed_percent=taken)
        )  # fmt: skip
        need = limits.get("min_free_bytes", 0)
        suits = memory is None or memory * share // 100 >= need
        idle[uuid] = 100 // share if suits else 0
        busy = health is not Health.FREE or (load or 0) > limits.get("max_utilization_percent", 100)
        now[uuid] = 0 if busy or not suits else (100 - held) // share
        if need and not held and free is not None:
            now[uuid] = min(now[uuid], free // need)
    try:
        answer = match(offers, replicas=missing, per_replica=per_replica, share_percent=share, **limits)
    except DevicesNeverFitError:
        assert not feasible(idle, per_replica, missing)
        return
    assert feasible(idle, per_replica, missing)
    assert isinstance(answer, Refused) != feasible(now, per_replica, missing)
    if isinstance(answer, Refused):
        assert answer.reasons
        return
    assert [len(set(part)) for part in answer] == [per_replica] * missing
    parts = Counter(uuid for part in answer for uuid in part)
    assert all(parts[uuid] <= now[uuid] for uuid in parts)
