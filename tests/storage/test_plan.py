"""Properties of what is planned: shares of replicas, manifests, selection of files."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.errors import StorageNotFoundError
from airflow_tf.core.manifest import StagedFile, StagedInput
from airflow_tf.storage.base import FileInfo, Uri
from airflow_tf.storage.globs import select

NAMES = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1).filter(
    lambda name: name not in {".", ".."}
)
SIZES = st.dictionaries(NAMES, st.integers(0, 10**12), min_size=1, max_size=20)


def staged(sizes: dict[str, int]) -> StagedInput:
    files = tuple(StagedFile(f"hdfs://nn/{name}", name, size, 1, 2) for name, size in sorted(sizes.items()))
    return StagedInput("hdfs://nn/", "/folder", files, skipped=("_SUCCESS",), boot="0badf00d")


@given(SIZES)
def test_a_manifest_is_read_as_it_was_written(sizes: dict[str, int]) -> None:
    assert StagedInput.loads(staged(sizes).dumps()) == staged(sizes)


class Listed:
    """One folder with these files."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def stat(self, path: str) -> FileInfo:
        return FileInfo(path, 0, is_dir=True, mtime_ms=0)

    def list(self, path: str):
        return iter([FileInfo(f"{path}/{name}", 1, is_dir=False, mtime_ms=0) for name in self._names])


@given(st.sets(NAMES, max_size=10))
def test_a_name_is_data_or_left_out_and_said_never_both_or_neither(names: set[str]) -> None:
    selection = select(Listed({*names, "part-0"}), Uri.parse("hdfs://nn/data"), lambda: None)  # type: ignore[arg-type]
    assert selection.files.keys() | set(selection.skipped) == {*names, "part-0"}
    assert not selection.files.keys() & set(selection.skipped)
    assert not any(name.startswith(("_", ".")) for name in selection.files)


SEGMENTS = st.sampled_from(["a", "ab", "b", "_a", ".b", "day=1", "x y", "[c", "é"])
TREES = st.sets(st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join), max_size=8)
PATTERNS = st.lists(
    st.sampled_from(["a", "ab", "*", "?", "a*", "[ab]", "[^a]*", "{a,b}", "{day=*,x ?}"]), min_size=1, max_size=3
)


class Tree:
    """A file system of files at these paths below ``/base``; what lies above a file is a folder."""

    def __init__(self, files: set[str]) -> None:
        self._files = {f"/base/{name}" for name in files}

    def stat(self, path: str) -> FileInfo:
        if path in self._files:
            return FileInfo(path, 1, is_dir=False, mtime_ms=0)
        if path == "/" or any(file.startswith(f"{path}/") for file in self._files) or path == "/base":
            return FileInfo(path, 0, is_dir=True, mtime_ms=0)
        raise StorageNotFoundError(path)

    def list(self, path: str):
        below = {
            file.removeprefix(f"{path.rstrip('/')}/") for file in self._files if file.startswith(f"{path.rstrip('/')}/")
        }
        return iter([self.stat(f"{path.rstrip('/')}/{name.partition('/')[0]}") for name in below])


def matches(path: str, pattern: list[str]) -> bool:
    """Tell by a regular expression, not segment by segment, whether a file is one of a glob, or below one."""
    parts = {"*": "[^/]*", "?": "[^/]", "[ab]": "[ab]", "[^a]*": "[^a/][^/]*", "a*": "a[^/]*", "{a,b}": "(a|b)"}
    parts["{day=*,x ?}"] = "(day=[^/]*|x [^/])"
    return bool(re.fullmatch("/base/" + "/".join(parts.get(one, one) for one in pattern) + "(/.*)?", path))


@given(TREES, PATTERNS)
def test_a_glob_selects_what_it_matches_and_all_below_but_side_files(files: set[str], pattern: list[str]) -> None:
    files = {name for name in files if not any(other.startswith(f"{name}/") for other in files)}  # no file is a folder
    matched = {f"/base/{name}" for name in files if matches(f"/base/{name}", pattern)}
    hidden = {path for path in matched if any(part.startswith(("_", ".")) for part in path.split("/"))}
    uri = Uri.parse(f"hdfs://nn/base/{'/'.join(pattern)}")
    try:
        found = {info.path for info in select(Tree(files), uri, lambda: None).files.values()}  # type: ignore[arg-type]
    except StorageNotFoundError:
        found = set()
    assert found == matched - hidden
