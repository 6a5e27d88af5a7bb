"""Writers of one file take turns: first come, first served; the killed and the forked keep nobody waiting."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import signal
import struct
import threading
import time

import pytest

from airflow_tf.ledger.turnstile import Turnstile

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def turnstile(tmp_path) -> Turnstile:
    return Turnstile(tmp_path / "ledger.db.turn")


def hold(path, ready):
    with Turnstile(path).turn(10.0):
        ready.set()
        time.sleep(60)


def wait_in(path, ready):
    ready.set()
    with Turnstile(path).turn(60.0):
        pass


def sign_in(path, book, number):
    with Turnstile(path).turn(60.0) as came, book.open("a") as file:
        file.write(f"{number} {came}\n")


def count_tickets(turnstile):
    return int.from_bytes(turnstile.path.read_bytes()[:8], "little")


def enter_again_and_again(path, together, book):
    turnstile = Turnstile(path)
    together.wait(60)
    for _ in range(2000):
        with turnstile.turn(60.0) as came, book.open("a") as file:
            file.write(f"{os.getpid()} {came}\n")


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_who_comes_first_goes_first(turnstile):
    order = []

    def enter(number):
        with turnstile.turn(20.0) as came:
            order.append((number, came))

    with turnstile.turn(1.0) as came:
        assert came
        threads = []
        for number in range(6):
            threads.append(threading.Thread(target=enter, args=(number,)))
            threads[-1].start()
            wait_for(lambda: count_tickets(turnstile) == number + 2)  # noqa: B023 (called at once)
    for thread in threads:
        thread.join(20)
    assert order == [(number, True) for number in range(6)]


def test_processes_go_in_the_order_in_which_they_came(turnstile, tmp_path, no_processes_left):
    book, processes = tmp_path / "book", []
    with turnstile.turn(1.0):
        for number in range(5):
            processes.append(SPAWN.Process(target=sign_in, args=(turnstile.path, book, number)))
            processes[-1].start()
            wait_for(lambda: count_tickets(turnstile) == number + 2)  # noqa: B023 (called at once)
        assert not book.exists()
    for process in processes:
        process.join(20)
    assert book.read_text().splitlines() == [f"{number} True" for number in range(5)]


def test_a_turn_that_does_not_come_in_time_is_not_waited_for(turnstile):
    with turnstile.turn(1.0):
        start = time.monotonic()
        with turnstile.turn(0.2) as came:
            assert not came
        assert time.monotonic() - start < 5
    with turnstile.turn(1.0) as came:
        assert came


@pytest.mark.parametrize("target", [hold, wait_in])
def test_who_is_killed_leaves_the_queue(turnstile, target, no_processes_left):
    ready = SPAWN.Event()
    process = SPAWN.Process(target=target, args=(turnstile.path, ready))
    with turnstile.turn(1.0) if target is wait_in else turnstile.turn(0.0) as came:
        assert came
        if target is wait_in:
            process.start()
            wait_for(lambda: count_tickets(turnstile) == 2)
            os.kill(process.pid, signal.SIGKILL)
            process.join(20)
    if target is hold:
        process.start()
        assert ready.wait(20)
        os.kill(process.pid, signal.SIGKILL)
        process.join(20)
    with turnstile.turn(5.0) as came:
        assert came


def test_a_child_that_was_forked_in_a_turn_does_not_keep_it(turnstile):
    reader, writer = os.pipe()
    with turnstile.turn(1.0):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with turnstile.turn(1.0) as came:
            assert came
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_on_a_full_disk_nobody_queues_and_nobody_is_kept_waiting(turnstile, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("airflow_tf.ledger.turnstile.os.pwrite", fail)
        with turnstile.turn(1.0) as came:
            assert not came
    with turnstile.turn(1.0) as came:
        assert came


def test_what_goes_wrong_within_a_turn_is_not_taken_for_a_full_disk(turnstile):
    with pytest.raises(OSError, match="of the caller"), turnstile.turn(1.0):
        raise OSError("of the caller")
    with turnstile.turn(1.0) as came:
        assert came


def test_who_comes_again_within_its_shift_goes_before_those_who_wait(turnstile, no_processes_left):
    ready = SPAWN.Event()
    with turnstile.turn(1.0) as came:
        assert came
        waiter = SPAWN.Process(target=wait_in, args=(turnstile.path, ready))
        waiter.start()
        wait_for(lambda: count_tickets(turnstile) == 2)
        lengthen_shift(turnstile, 600)
    with turnstile.turn(0.0) as came:  # no time to wait in
        assert came
        assert count_tickets(turnstile) == 2
        lengthen_shift(turnstile, 0)
    waiter.join(20)
    assert waiter.exitcode == 0


def test_who_stays_away_within_its_shift_keeps_nobody_waiting(turnstile, no_processes_left):
    ready = SPAWN.Event()
    with turnstile.turn(1.0):
        lengthen_shift(turnstile, 600)
    waiter = SPAWN.Process(target=wait_in, args=(turnstile.path, ready))
    waiter.start()
    waiter.join(60)
    assert waiter.exitcode == 0
    with turnstile.turn(1.0) as came:
        assert came
        assert count_tickets(turnstile) == 3, "the shift went on although another one was let through"


@pytest.mark.parametrize("seconds", [-1e9, 1e9])
def test_a_time_of_another_boot_is_no_time(turnstile, seconds):
    with turnstile.turn(1.0):
        pass
    at = time.monotonic_ns() + int(seconds * 1e9)
    with turnstile.path.open("r+b") as file:
        file.seek(16)
        file.write(struct.pack("<qq", at + 10**9, at))
    with turnstile.turn(0.0) as came:
        assert came
        assert count_tickets(turnstile) == 2


def test_shifts_end_though_their_owner_always_comes_back(turnstile, tmp_path, no_processes_left):
    together, book = SPAWN.Barrier(3), tmp_path / "book"
    processes = [SPAWN.Process(target=enter_again_and_again, args=(turnstile.path, together, book)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    lines = [line.split() for line in book.read_text().splitlines()]
    assert len(lines) == 6000
    assert all(came == "True" for _, came in lines)
    changes = sum(one[0] != other[0] for one, other in itertools.pairwise(lines))
    assert changes >= 3, "one that began was never interrupted"


def lengthen_shift(turnstile, seconds):
    with turnstile.path.open("r+b") as file:
        file.seek(16)
        file.write(struct.pack("<q", time.monotonic_ns() + seconds * 10**9))
