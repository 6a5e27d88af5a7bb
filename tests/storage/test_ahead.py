"""What is sent while it is written: the publisher takes it over if it is what the manifest says, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_tf.core.checkpoint import verify
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.errors import CheckpointError, PublishError, StorageUnavailableError
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.core.retention import Keep
from airflow_tf.operators.candidates import collect, describe
from airflow_tf.operators.sending import Sending
from airflow_tf.storage import client
from airflow_tf.storage.base import FileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.versions import COPIES_SECONDS
from tests.checkpoint.conftest import write
from tests.storage.storage_helpers import eventually
from tests.storage.test_publish import Failing, Place, local, manifest_of, on_hdfs, place, publish_here, whole
from tests.storage.test_versions import versions_of

__all__ = ["local", "on_hdfs", "place", "write"]  # fixtures
DATA = "ckpt-1.data-00000-of-00001"


class Recording:
    """Remembers the paths that are written."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner, self.written = inner, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, path: str, chunks: Any) -> int:
        self.written.append(path.rpartition("/")[2])
        return self._inner.write(path, chunks)


def send(place: Place, file: Path, size: int, fence: int = 5) -> None:
    client.send_ahead(
        file, place.destination, options=place.options, fence=fence, name=DATA, size=size, stall_seconds=20.0
    )


def test_a_file_that_grows_is_sent_and_taken_over(place: Place, local: Path) -> None:
    data, growing = (local / DATA).read_bytes(), local / "growing"
    growing.touch()
    sender = threading.Thread(target=send, args=(place, growing, len(data)))
    sender.start()
    with growing.open("ab") as file:
        for start in range(0, len(data), 500_000):
            file.write(data[start : start + 500_000])
            file.flush()
            time.sleep(0.01)
    eventually(place.names)  # it has the file open
    growing.rename(local / "its name")
    sender.join()
    (hidden,) = place.names()
    assert hidden.startswith(".airflow_tf-sent-5-v=1-")
    manifest, files = manifest_of(local), Recording(place.files)
    publish_here(place, files, local, manifest)
    assert place.tree() == whole(local, manifest)
    assert sorted(files.written) == ["_SUCCESS", "asset", "ckpt-1.index", "manifest.json"]


@pytest.mark.parametrize(("other", "fence"), [("bytes", 5), ("size", 5), ("fence", 4)])
def test_what_is_not_the_manifests_is_sent_anew(tmp_path: Path, local: Path, other: str, fence: int) -> None:
    place, data = Place(f"file://{tmp_path}/models"), bytearray((local / DATA).read_bytes())
    if other == "bytes":
        data[7] ^= 1
    if other == "size":
        data.append(7)
    (local / "sent").write_bytes(data)
    send(place, local / "sent", len(data), fence)
    manifest, files = manifest_of(local), Recording(place.files)
    publish_here(place, files, local, manifest)
    assert place.tree() == whole(local, manifest)
    assert DATA in files.written


@pytest.mark.parametrize(
    "added",
    [
        {"../victim": {"size": 0, "crc32c": 0}},
        {"..": None},
        {"sub/../../victim/x": {"size": 1, "crc32c": 0}},
        {"other": {"size": 1, "crc32c": 0}},
        ["other"],
        None,
    ],
)
def test_a_folder_with_anything_but_what_is_wanted_is_garbage_and_harms_nothing(
    tmp_path: Path, local: Path, added: Any
) -> None:
    place, manifest = Place(f"file://{tmp_path}/models"), manifest_of(local)
    place.files.make_dirs(f"{place.path}/victim")
    place.files.write(f"{place.path}/victim/x", [b"x"])
    send(place, local / DATA, (local / DATA).stat().st_size)
    (hidden,) = (tmp_path / "models").glob(".airflow_tf-sent-*")
    note = json.loads((hidden / ".sent.json").read_text())
    (hidden / ".sent.json").write_text(json.dumps(note | added if isinstance(added, dict) else added or note))
    if added is None:  # no file of ours, although the note is
        (hidden / "other").write_text("x")
    files = Recording(place.files)
    publish_here(place, files, local, manifest)
    assert place.tree() == whole(local, manifest) | {"victim/x": b"x"}
    assert DATA in files.written


def test_a_newer_fences_data_stays(tmp_path: Path, local: Path) -> None:
    place = Place(f"file://{tmp_path}/models")
    send(place, local / DATA, (local / DATA).stat().st_size, fence=6)
    publish_here(place, place.files, local, manifest_of(local))
    assert [name[:21] for name in place.names()] == [".airflow_tf-sent-6-v=", "v=1"]


def test_a_file_that_is_given_up_leaves_nothing(tmp_path: Path, local: Path) -> None:
    place, growing = Place(f"file://{tmp_path}/models"), local / "growing"
    growing.write_bytes(b"x" * 2_000_000)

    def give_up() -> None:
        eventually(place.names)
        growing.unlink()

    thread = threading.Thread(target=give_up)
    thread.start()
    with pytest.raises(PublishError, match="will not be finished: its file is gone"):
        send(place, growing, 3_000_000)
    thread.join()
    assert place.names() == []


def test_a_sender_that_comes_later_replaces_an_earlier_one(tmp_path: Path, local: Path) -> None:
    place, size = Place(f"file://{tmp_path}/models"), (local / DATA).stat().st_size
    for _ in range(2):
        send(place, local / DATA, size)
    assert len(place.names()) == 1


def test_a_file_system_that_fails_in_any_phase_of_the_taking_over(tmp_path: Path, local: Path) -> None:
    manifest = manifest_of(local)
    for calls in range(200):
        place = Place(f"file://{tmp_path}/{calls}")
        send(place, local / DATA, (local / DATA).stat().st_size)
        done = True
        try:
            publish_here(place, Failing(place.files, calls), local, manifest)
        except StorageUnavailableError:
            done = False
        visible = {name: data for name, data in place.tree().items() if not name.startswith(".")}
        assert visible in ({}, whole(local, manifest))
        publish_here(place, place.files, local, manifest)
        assert place.tree() == whole(local, manifest)
        if done:
            return
    pytest.fail("it never succeeds")


def test_what_was_sent_and_never_published_goes_after_a_week(place: Place, local: Path) -> None:
    send(place, local / DATA, (local / DATA).stat().st_size)
    ((hidden, at),) = [(info.path, info.mtime_ms / 1000) for info in place.files.list(place.path)]
    for seconds in (COPIES_SECONDS - 600, COPIES_SECONDS + 600):
        assert [info.path for info in place.files.list(place.path)] == [hidden]
        versions_of(place, now=at + seconds).prune(Keep(last=1), None)
    assert place.names() == []


@pytest.mark.hdfs
def test_an_average_is_sent_while_it_is_made_and_then_published(on_hdfs: Place, tmp_path: Path, write: Any) -> None:
    make = np.random.default_rng(0).normal
    prefixes = [write(f"r{n}", **{f"w{i}": make(size=700_000).astype("f4") for i in range(4)}) for n in range(3)]
    notes: list[str] = []
    with Sending(on_hdfs.destination, on_hdfs.options, 3, notes.append, 0) as sending:
        average(prefixes, str(tmp_path / "average"), on_begin=sending.begin)
    assert notes == []
    model = collect(str(tmp_path / "average"), tmp_path / "model")
    manifest, files = PublishManifest(fence=3, digest="a", files=describe(model)), Recording(on_hdfs.files)
    publish_here(on_hdfs, files, model, manifest)
    assert on_hdfs.tree() == whole(model, manifest)
    assert sorted(files.written) == ["_SUCCESS", "checkpoint", "manifest.json", "model.index"]


def test_an_average_that_is_refused_or_begun_anew_is_not_taken_for_the_result(tmp_path: Path, write: Any) -> None:
    place = Place(f"file://{tmp_path}/models")
    good, bad = write("good", w=np.ones(300_000, "f4")), write("bad", w=np.full(300_000, np.nan, "f4"))
    notes: list[str] = []
    with (
        Sending(place.destination, place.options, 3, notes.append, 0) as sending,
        pytest.raises(CheckpointError, match="NaN"),
    ):
        average([good, bad], str(tmp_path / "average"), on_begin=sending.begin)
    assert place.names() == []
    with Sending(place.destination, place.options, 3, notes.append, 0) as sending:
        average([good, bad], str(tmp_path / "average"), on_begin=sending.begin, not_finite="leave_out")
    assert ["its file is gone" in note for note in notes] == [True, True]
    model = collect(str(tmp_path / "average"), tmp_path / "model")
    manifest = PublishManifest(fence=3, digest="a", files=describe(model))
    publish_here(place, place.files, model, manifest)
    assert place.tree() == whole(model, manifest)


def test_a_destination_that_is_away_does_not_disturb_the_average(tmp_path: Path, write: Any) -> None:
    (tmp_path / "file").touch()
    uri, prefixes = f"file://{tmp_path}/file/v=1", [write("r0", w=np.ones(9, "f4")), write("r1", w=np.zeros(9, "f4"))]
    notes: list[str] = []
    with Sending(uri, StorageOptions.from_uri(uri), 3, notes.append, 0) as sending:
        average(prefixes, str(tmp_path / "average"), on_begin=sending.begin)
    verify(str(tmp_path / "average"))
    assert notes[0].startswith("nothing was sent while the average was made: ")
