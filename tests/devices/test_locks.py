"""Device locks exclude processes and users, survive their holder's text, and never vanish."""

from __future__ import annotations

import os
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


def test_the_token_stays_after_the_holder_until_it_is_cleared(tmp_path):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.read_token() is None
    assert lock.try_acquire()
    lock.write_token("a" * 48)
    lock.release()
    later = DeviceLock(tmp_path, "cpu-0")
    assert later.read_token() == "a" * 48
    holder = later.read_holder()
    assert holder is not None
    assert (holder.pid, holder.uid) == (os.getpid(), os.getuid())
    assert later.try_acquire()
    later.write_token("b")
    assert later.read_token() == "b"
    later.write_token("")
    assert later.read_token() is None


def test_a_token_of_an_earlier_boot_is_no_token(tmp_path, monkeypatch):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.try_acquire()
    lock.write_token("t")
    monkeypatch.setattr("airflow_tf.devices.locks._boot_id", lambda: "the next boot")
    assert lock.read_token() is None


def test_writing_without_the_lock_is_refused(tmp_path):
    with pytest.raises(DeviceLockError, match="not held"):
        DeviceLock(tmp_path, "cpu-0").write_token("t")


def test_garbage_in_the_file_is_no_token(tmp_path):
    lock = DeviceLock(tmp_path, "cpu-0")
    assert lock.try_acquire()
    for text in ("", "[]", "{}", '{"token": 1}', "\x00" * 10):
        lock.path.write_text(text)
        assert lock.read_token() is None


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
