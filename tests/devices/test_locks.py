"""Device locks exclude processes and users, survive their holder's text, and never vanish."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from airflow_tf.core.errors import DeviceLockError
from airflow_tf.devices.locks import DeviceLock, ensure_lock_folder

TRY_FROM_OTHER_PROCESS = (
    "import sys\nfrom pathlib import Path\nfrom airflow_tf.devices.locks import DeviceLock\n"
    "print(DeviceLock(Path(sys.argv[1]), sys.argv[2]).try_acquire())\n"
)


def try_from_other_process(folder, uuid, pass_fds=()):
    command = [sys.executable, "-c", TRY_FROM_OTHER_PROCESS, str(folder), uuid]
    return subprocess.run(command, capture_output=True, text=True, check=True, pass_fds=pass_fds).stdout.strip()


def test_excludes_another_process_until_released(tmp_path):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.try_acquire()
    assert try_from_other_process(tmp_path, "cpu-0") == "False"
    assert DeviceLock(tmp_path, "cpu-0").is_held()
    lock.release()
    lock.release()
    assert not DeviceLock(tmp_path, "cpu-0").is_held()
    assert try_from_other_process(tmp_path, "cpu-0") == "True"


def test_the_lock_lives_with_a_descriptor_given_to_a_child_and_with_no_other_child(tmp_path):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.try_acquire()
    program = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    heir = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock.fileno])
    stranger = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    try:
        assert heir.stdout.readline() == b"up\n"
        assert stranger.stdout.readline() == b"up\n"
        lock.release()
        assert DeviceLock(tmp_path, "cpu-0").is_held()
        heir.communicate(timeout=10)
        assert not DeviceLock(tmp_path, "cpu-0").is_held()
    finally:
        for process in (heir, stranger):
            process.kill()
            process.communicate(timeout=10)


def test_the_file_is_writable_by_all_whatever_the_umask_and_is_never_replaced(tmp_path):
    before = os.umask(0o077)
    try:
        lock = DeviceLock(tmp_path, "GPU-1")
        assert lock.try_acquire()
    finally:
        os.umask(before)
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    inode = lock.path.stat().st_ino
    lock.release()
    assert DeviceLock(tmp_path, "GPU-1").try_acquire()
    assert lock.path.stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["GPU-1.lock"]


def test_many_first_users_agree_on_one_file(tmp_path):
    locks = [DeviceLock(tmp_path, "cpu-0") for _ in range(16)]
    barrier = threading.Barrier(len(locks))
    got = []

    def take(lock):
        barrier.wait()
        got.append(lock.try_acquire())

    threads = [threading.Thread(target=take, args=[lock]) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 15 + [True]


def test_probing_never_keeps_a_holder_out(tmp_path):
    stop = threading.Event()

    def probe():
        while not stop.wait(0.001):
            DeviceLock(tmp_path, "cpu-0").is_held()

    prober = threading.Thread(target=probe)
    prober.start()
    try:
        for _ in range(100):
            lock = DeviceLock(tmp_path, "cpu-0")
            assert lock.try_acquire()
            lock.release()
    finally:
        stop.set()
        prober.join()


def tokens_left(folder, uuid="cpu-0"):
    return [holder.token for holder in DeviceLock(folder, uuid).left_behind()]


def test_the_token_stays_after_the_holder_until_it_is_cleared(tmp_path):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.left_behind() == ()
    assert lock.try_acquire()
    lock.write_token("a" * 48)
    lock.release()
    later = DeviceLock(tmp_path, "cpu-0")
    (holder,) = later.left_behind()
    assert (holder.token, holder.pid, holder.uid) == ("a" * 48, os.getpid(), os.getuid())
    assert later.try_acquire()
    assert later.left_behind() == (holder,)
    later.write_token("b")
    assert [holder.token for holder in later.holders()] == ["b"]
    later.write_token("")
    later.release()
    assert tokens_left(tmp_path) == []


def test_a_token_of_an_earlier_boot_is_no_token(tmp_path, monkeypatch):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.try_acquire()
    lock.write_token("t")
    monkeypatch.setattr("airflow_tf.devices.locks._boot_id", lambda: "the next boot")
    assert lock.left_behind() == ()
    assert lock.holders() == ()
    assert lock.held_percent() == 100


def test_writing_without_the_lock_is_refused(tmp_path):
    with pytest.raises(DeviceLockError, match="not held"):
        DeviceLock(tmp_path, "cpu-0").write_token("t")


def test_garbage_in_the_file_is_no_token(tmp_path):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.try_acquire()
    for text in ("", "[]", "{}", '{"token": 1}', "\x00" * 10, "\udcff"):
        lock.path.write_text(text, errors="surrogateescape")
        assert lock.left_behind() == ()


def test_a_token_that_does_not_fit_is_refused_before_it_is_written(tmp_path):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.try_acquire()
    with pytest.raises(DeviceLockError, match="does not fit"):
        lock.write_token("t" * 200)
    assert lock.path.stat().st_size == 0


def test_shares_fill_a_device_and_exclude_whole_holders_both_ways(tmp_path):
    half, third, whole = (DeviceLock(tmp_path, "GPU-0", share) for share in (50, 33, 100))
    assert half.try_acquire()
    assert third.try_acquire()
    assert DeviceLock(tmp_path, "GPU-0").held_percent() == 83
    assert not DeviceLock(tmp_path, "GPU-0", 18).try_acquire()
    assert not whole.try_acquire()
    rest = DeviceLock(tmp_path, "GPU-0", 17)
    assert rest.try_acquire()
    for lock in (half, third, rest):
        lock.release()
    assert whole.try_acquire()
    assert not DeviceLock(tmp_path, "GPU-0", 1).try_acquire()


def test_the_next_sharer_sweeps_what_died_but_nobody_who_still_shares(tmp_path):
    dead, living, other = (DeviceLock(tmp_path, "GPU-0", 30) for _ in range(3))
    for lock, token in ((other, "swept"), (dead, "dead"), (living, "living")):
        assert lock.try_acquire()
        lock.write_token(token)
    other.write_token("")
    other.release()
    dead.release()
    heir = DeviceLock(tmp_path, "GPU-0", 10)
    assert heir.try_acquire()  # of the slots of the first, not those of the dead: it is swept all the same
    assert [holder.token for holder in heir.left_behind()] == ["dead"]
    assert [holder.token for holder in DeviceLock(tmp_path, "GPU-0").holders()] == ["", "living"]


def test_a_whole_holder_sweeps_the_trees_of_all_earlier_sharers(tmp_path):
    sharers = [DeviceLock(tmp_path, "GPU-0", 50) for _ in range(2)]
    for number, lock in enumerate(sharers):
        assert lock.try_acquire()
        lock.write_token(f"sharer {number}")
    for lock in sharers:
        lock.release()
    whole = DeviceLock(tmp_path, "GPU-0")
    assert whole.try_acquire()
    assert [holder.token for holder in whole.left_behind()] == ["sharer 0", "sharer 1"]
    whole.write_token("")
    whole.release()
    assert tokens_left(tmp_path, "GPU-0") == []


def test_a_share_ends_with_its_process_however_it_dies(tmp_path):
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom airflow_tf.devices.locks import DeviceLock\n"
        "lock = DeviceLock(Path(sys.argv[1]), 'GPU-0', 60)\nassert lock.try_acquire()\nlock.write_token('t')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert DeviceLock(tmp_path, "GPU-0").held_percent() == 0
    assert tokens_left(tmp_path, "GPU-0") == ["t"]


def test_names_that_are_no_file_names_stay_apart_and_inside(tmp_path):
    names = ["MIG-GPU-1/1/0", "MIG-GPU-1-1-0", "../escape", "a b", "ä"]
    paths = {DeviceLock(tmp_path, name).path for name in names}
    assert len(paths) == len(names)
    assert {path.parent for path in paths} == {tmp_path}


def test_a_link_in_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "cpu-0.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeviceLockError, match="lock_dir"):
        DeviceLock(tmp_path, "cpu-0").try_acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_makes_the_folder_for_all_users(tmp_path):
    folder = tmp_path / "run" / "locks"
    before = os.umask(0o077)
    try:
        ensure_lock_folder(folder)
        ensure_lock_folder(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


def test_says_what_to_do_when_the_folder_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DeviceLockError, match="install -d -m 1777"):
        ensure_lock_folder(tmp_path / "file" / "locks")


def test_a_folder_that_does_not_exist_is_a_clear_error(tmp_path):
    lock = DeviceLock(tmp_path / "missing", "cpu-0")
    assert not lock.is_held()
    with pytest.raises(DeviceLockError, match="lock_dir"):
        lock.try_acquire()


def test_a_swept_device_is_given_back_without_its_token_or_on_a_full_disk_with_it(tmp_path, monkeypatch):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.try_acquire()
    lock.write_token("token-1")
    with monkeypatch.context() as patched:
        patched.setattr("airflow_tf.devices.locks.os.pwrite", lambda *_: (_ for _ in ()).throw(OSError("full")))
        lock.give_back()
    assert not lock.is_held()
    assert [holder.token for holder in lock.left_behind()] == ["token-1"]
    assert lock.try_acquire()
    lock.give_back()
    assert not lock.is_held()
    assert lock.left_behind() == ()
