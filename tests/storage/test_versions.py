"""The newest version, the pointer to it, and the removal of old ones in two phases."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tf.core.errors import PublishError, StorageExistsError, StoragePermissionError, StorageUnavailableError
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.core.retention import Keep
from airflow_tf.storage import client
from airflow_tf.storage.base import Uri, read_all
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience
from airflow_tf.storage.publishing import Publisher
from airflow_tf.storage.versions import Versions
from tests.storage.test_publish import Place, base_uri

NAMES = [f"v=2026010{day}T000000Z-0000000{day}" for day in range(1, 6)]


@pytest.fixture(
    params=["file", pytest.param("hdfs", marks=pytest.mark.hdfs), pytest.param("webhdfs", marks=pytest.mark.hdfs)]
)
def place(request: pytest.FixtureRequest) -> Place:
    return Place(base_uri(request.param, request))


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return Place(f"file://{tmp_path}/models with spaces")


def versions_of(place: Place, files: Any = None, now: float | None = None) -> Versions:
    found = Versions(Uri.parse(place.base), files or place.files, Patience(0.0, lambda _text: None))
    return found if now is None else replace(found, wall_seconds=lambda: now)


def fill(place: Place, names: list[str], **metrics: float) -> float:
    """Write whole versions; return when the last one was written, by the file system's clock."""
    for name in names:
        folder = f"{place.path}/{name}"
        place.files.make_dirs(folder)
        manifest = {"fence": 1, "digest": name, "metrics": {"mae": metrics.get(name[-1], 0.0)}}
        place.files.write(f"{folder}/manifest.json", [json.dumps(manifest).encode()])
        place.files.write(f"{folder}/_SUCCESS", [b""])
    return place.files.stat(f"{place.path}/{names[-1]}/_SUCCESS").mtime_ms / 1000


def publish(place: Place, name: str, local: Path, fence: int = 1, **options: Any) -> str:
    local.mkdir(exist_ok=True)
    manifest = PublishManifest(fence=fence, digest=f"{name}-{fence}", files={})
    return client.publish(
        local,
        f"{place.base}/{name}",
        options=place.options,
        manifest=manifest,
        on_progress=lambda _text: None,
        **options,
    )


def results(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["version"][-1]: row["result"] for row in rows}


def test_whole_versions_are_listed_and_nothing_else(place: Place) -> None:
    versions = versions_of(place)
    assert (versions.all(), versions.latest(), versions.pointer()) == ([], None, None)
    fill(place, NAMES[:3])
    place.files.make_dirs(f"{place.path}/{NAMES[4]}")  # being made by something else
    place.files.make_dirs(f"{place.path}/v=other")
    place.files.write(f"{place.path}/notes", [b"x"])
    assert [version.name for version in versions.all()] == NAMES[:3]
    assert versions.latest() == f"{place.base}/{NAMES[2]}"
    assert client.latest_version(place.base, options=place.options) == f"{place.base}/{NAMES[2]}"


def test_the_pointer_is_replaced_and_never_goes_back(place: Place, tmp_path: Path) -> None:
    for name, newest in ((NAMES[0], NAMES[0]), (NAMES[3], NAMES[3]), (NAMES[1], NAMES[3])):
        publish(place, name, tmp_path / "local")
        assert versions_of(place).pointer() == newest
    assert place.names() == sorted([*[NAMES[0], NAMES[1], NAMES[3]], "_latest"])


def test_publishers_at_once_leave_the_newest_as_the_pointer(here: Place, tmp_path: Path) -> None:
    threads = [threading.Thread(target=publish, args=(here, name, tmp_path / "local")) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions_of(here).pointer() == NAMES[-1]
    assert here.names() == sorted([*NAMES, "_latest"])


class Racing:
    """Another publisher publishes and points to a newer version between our look and our write."""

    def __init__(self, place: Place) -> None:
        self._place, self.raced = place, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place.files, name)

    def replace(self, source: str, target: str) -> None:
        if not self.raced:
            self.raced = True
            fill(self._place, [NAMES[4]])
            self._place.files.write(target, [NAMES[4].encode()])
        self._place.files.replace(source, target)


def test_an_older_name_that_was_written_late_is_corrected(here: Place) -> None:
    fill(here, NAMES[:1])
    versions_of(here, Racing(here)).point()
    assert versions_of(here).pointer() == NAMES[4]


class Tidying(Racing):
    """Another publisher removes what it takes for a dead one's pointer, before ours gets its name."""

    def replace(self, source: str, target: str) -> None:
        if not self.raced:
            self.raced = True
            self._place.files.delete(source)
        self._place.files.replace(source, target)


def test_a_pointer_that_a_killed_publisher_has_left_is_removed_and_one_that_lives_is_written_again(
    place: Place,
) -> None:
    fill(place, NAMES[:1])
    place.files.write(f"{place.path}/.airflow_tf-latest-0123456789ab", [b"v="])
    versions_of(place, racing := Tidying(place)).point()
    assert racing.raced
    assert versions_of(place).pointer() == NAMES[0]
    assert place.names() == ["_latest", NAMES[0]]


class Counted:
    """Counts the calls."""

    def __init__(self, place: Place) -> None:
        self._place, self.calls = place, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._place.files, name)


def test_the_newest_is_found_without_a_look_at_all_the_others(here: Place) -> None:
    fill(here, many := [f"v=2026010{day}T0000{second:02}Z-01" for day in range(1, 6) for second in range(20)])
    here.files.write(f"{here.path}/{many[-1]}/_to_be_removed", [b""])
    here.files.make_dirs(f"{here.path}/v=20270101T000000Z-01")  # being made by something else
    versions_of(here, asked := Counted(here)).point()
    assert versions_of(here).pointer() == many[-2]
    assert asked.calls["list"] == 2  # to point, and to look again
    assert sum(asked.calls.values()) < 40  # of 500


def test_every_version_that_is_looked_at_or_changed_counts_as_progress(here: Place) -> None:
    now, ticks = fill(here, NAMES), list[None]()
    versions = replace(versions_of(here, now=now), tick=lambda: ticks.append(None))
    versions.rows()
    assert len(ticks) >= len(NAMES)
    ticks.clear()
    versions.prune(Keep(last=1), None)
    assert len(ticks) >= 2 * len(NAMES)


def test_publishers_tell_of_the_versions_that_they_look_at(here: Place, tmp_path: Path) -> None:
    fill(here, NAMES)
    for name in NAMES:
        here.files.write(f"{here.path}/{name}/_to_be_removed", [b""])
    manifest = PublishManifest(fence=1, digest="x", files={})
    uri, ticks = Uri.parse(f"{here.base}/v=20250101T000000Z-01"), list[int]()
    reporter = SimpleNamespace(note=str, expect=max, tick=lambda *_, **__: ticks.append(len(here.names())))
    (tmp_path / "local").mkdir()
    Publisher(uri, here.files, reporter, Patience(0.0, str), manifest).run(tmp_path / "local")
    assert ticks.count(len(NAMES) + 1) > len(NAMES)  # when it has been renamed, and before `_latest` is written


def test_what_no_rule_keeps_is_marked_first_and_removed_after_the_grace(place: Place) -> None:
    now = fill(place, NAMES, **{"1": 0.5, "2": 3.0, "3": 9.0, "4": 8.0, "5": 7.0})
    rules = Keep(last=2, best=1)
    rows = versions_of(place, now=now).prune(rules, "mae")
    assert results(rows) == {"1": "kept", "2": "marked", "3": "marked", "4": "kept", "5": "kept"}
    assert results(versions_of(place, now=now + 60).prune(rules, "mae"))["2"] == "marked"
    rows = versions_of(place, now=now + 4000).prune(rules, "mae")
    assert results(rows) == {"1": "kept", "2": "removed", "3": "removed", "4": "kept", "5": "kept"}
    assert place.names() == [NAMES[0], NAMES[3], NAMES[4]]


def test_copies_of_a_run_that_never_published_go_when_nothing_was_copied_for_a_week(place: Place) -> None:
    now = fill(place, NAMES[:1])
    copies = f"{place.path}/.airflow_tf-runs"
    place.files.make_dirs(f"{copies}/run/train/replica-0/generation-1/1-ck-1")
    rules, week = Keep(last=1), 7 * 86400
    versions_of(place, now=now + week - 600).prune(rules, None)
    assert len(list(place.files.list(copies))) == 1
    versions_of(place, now=now + week + 600).prune(rules, None, dry_run=True)
    assert len(list(place.files.list(copies))) == 1
    versions_of(place, now=now + week + 600).prune(rules, None)
    assert list(place.files.list(copies)) == []


def test_a_marked_version_is_not_the_newest_for_a_reader_and_is_kept_again_if_a_rule_says_so(here: Place) -> None:
    now = fill(here, NAMES[:3])
    here.files.write(f"{here.path}/{NAMES[2]}/_to_be_removed", [b""])
    versions = versions_of(here, now=now)
    assert versions.latest() == f"{here.base}/{NAMES[1]}"
    assert results(versions.prune(Keep(last=1), None))["3"] == "kept"
    assert versions.latest() == f"{here.base}/{NAMES[2]}"


def test_what_the_pointer_names_stays_although_no_rule_keeps_it(here: Place) -> None:
    now = fill(here, NAMES)
    here.files.write(f"{here.path}/_latest", [NAMES[1].encode()])
    rows = versions_of(here, now=now).prune(Keep(last=1), None)
    assert results(rows) == {"1": "marked", "2": "kept", "3": "marked", "4": "marked", "5": "kept"}
    assert rows[1]["reason"] == "published as the newest"


class Dying:
    """The process is killed, or the name node goes away, at the n-th call."""

    def __init__(self, place: Place, calls: int) -> None:
        self._place, self.left = place, calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._place.files, name)

        def call(*arguments: Any) -> Any:
            if self.left == 0:
                raise StorageUnavailableError("the name node is gone")
            self.left -= 1
            return method(*arguments)

        return call


def test_a_removal_that_dies_anywhere_leaves_no_half_of_a_version(tmp_path: Path) -> None:
    ended = 0
    for calls in range(200):
        place = Place(f"file://{tmp_path}/{calls}")
        now = fill(place, NAMES[:3])
        versions_of(place, now=now).prune(Keep(last=1), None)
        try:
            versions_of(place, Dying(place, calls), now + 4000).prune(Keep(last=1), None)
            ended += 1
        except StorageUnavailableError:
            pass
        whole = [version.name for version in versions_of(place).all()]
        assert [name for name in place.names() if not name.startswith(".")] == whole
        versions_of(place, now=now + 4000).prune(Keep(last=1), None)
        assert place.names() == [NAMES[2]]
        if ended:
            return
    pytest.fail("the removal never ended")


def test_a_publisher_that_is_not_the_one_any_more_publishes_nothing(place: Place, tmp_path: Path) -> None:
    asked = []

    def refuse() -> None:
        asked.append([name for name in place.names() if name.startswith(".airflow_tf-new")])
        raise PublishError("a newer attempt has begun")

    with pytest.raises(PublishError, match="a newer attempt has begun"):
        publish(place, NAMES[0], tmp_path / "local", confirm=refuse)
    assert len(asked[0]) == 1  # all files were there: it is asked at the last moment
    assert versions_of(place).all() == []
    publish(place, NAMES[0], tmp_path / "local", fence=2)
    assert read_all(place.files, f"{place.path}/_latest") == NAMES[0].encode()
    assert place.names() == ["_latest", NAMES[0]]


def test_pruning_by_the_client(here: Place) -> None:
    fill(here, NAMES[:2])
    options = {"options": here.options, "keep": Keep(last=1), "metric": None, "on_progress": lambda _text: None}
    assert results(client.prune_versions(here.base, **options)) == {"1": "marked", "2": "kept"}
    assert results(client.prune_versions(here.base, grace_seconds=0.0, **options)) == {"1": "removed", "2": "kept"}


def test_asking_whether_a_base_can_be_published_to_leaves_nothing_behind(place: Place) -> None:
    base = f"{place.base}/not/there/yet"
    place.files.make_dirs(place.path)
    client.check_destination(base, options=place.options)
    assert list(place.files.list(place.path)) == []
    place.files.write(f"{place.path}/not", [b"a file"])
    with pytest.raises(StorageExistsError, match="/not is a file"):
        client.check_destination(base, options=place.options)


def test_a_base_that_may_not_be_written_is_told_before_anything_is_published() -> None:
    with pytest.raises(StoragePermissionError, match="/sys"):
        client.check_destination("file:///sys/models", options=StorageOptions.from_uri("file:///sys/models"))
