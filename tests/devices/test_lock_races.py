"""However eight processes fall over four devices, none is ever over full, nor shared while it is held whole."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_tf.devices.locks import DeviceLock

TASKS, DEVICES, ROUNDS = 8, 4, 200

# Both bounds of what a process holds are on one clock for all: since it surely has the lock, until it begins to drop it.
TASK = """
import json, random, sys, time
from pathlib import Path
from airflow_tf.devices.locks import DeviceLock

folder, seed, shares = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
choice = random.Random(seed)
print("ready", flush=True)
for line in sys.stdin:
    held = []
    for device in choice.sample(range(4), 4):
        share = choice.choice(shares)
        lock = DeviceLock(folder, f"GPU-{device}", share)
        if not lock.try_acquire():
            continue
        since = time.monotonic_ns()
        lock.write_token(f"{seed}")
        time.sleep(choice.choice([0, 0.001]))
        held.append((device, share, since, time.monotonic_ns()))
        lock.release()
        break
    print(json.dumps(held), flush=True)
"""


@pytest.fixture
def tasks(tmp_path):
    started = []

    def start(shares):
        started.extend(
            subprocess.Popen(
                [sys.executable, "-c", TASK, str(tmp_path), str(seed), json.dumps(shares)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for seed in range(TASKS)
        )
        for task in started:
            assert task.stdout.readline() == "ready\n"
        return started

    yield start
    for task in started:
        task.kill()
        task.communicate()


@pytest.mark.parametrize("shares", [[100], [50], [100, 50, 33, 7]])
def test_no_device_is_ever_held_beyond_its_whole(tasks, shares):
    started = tasks(shares)
    got = Counter()
    for _ in range(ROUNDS):
        for task in started:
            task.stdin.write("go\n")
            task.stdin.flush()
        held = [tuple(part) for task in started for part in json.loads(task.stdout.readline())]
        got.update(share for _, share, _, _ in held)
        for device in range(DEVICES):
            check_device([(share, since, until) for number, share, since, until in held if number == device])
    assert set(got) == set(shares)
    assert got.total() >= ROUNDS * (DEVICES if shares == [100] else TASKS // 2)


def check_device(holders):
    """Add up, at each moment at which somebody came, the shares of all who were there."""
    for _, moment, _ in holders:
        assert sum(share for share, since, until in holders if since <= moment < until) <= 100


@dataclass
class Model:
    shares: dict[int, int] = field(default_factory=dict)

    def fits(self, share):
        return sum(self.shares.values()) + share <= 100


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["take", "release"]), st.integers(1, 100), st.integers(0, 7)), max_size=30))
def test_a_share_is_given_if_and_only_if_so_much_is_left(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("locks")
    model, locks, numbers = Model(), {}, itertools.count()
    for action, share, position in steps:
        if action == "take":
            lock, number = DeviceLock(folder, "GPU-0", share), next(numbers)
            expected = model.fits(share)
            assert lock.try_acquire() == expected
            if expected:
                lock.write_token(str(number))
                model.shares[number], locks[number] = share, lock
        elif locks:
            number = sorted(locks)[position % len(locks)]
            locks.pop(number).release()
            del model.shares[number]
        probe = DeviceLock(folder, "GPU-0")
        assert probe.held_percent() == sum(model.shares.values())
        assert sorted(int(holder.token) for holder in probe.holders()) == sorted(model.shares)
        assert not {holder.token for holder in probe.left_behind()} & {str(number) for number in model.shares}
    for lock in locks.values():
        lock.release()
