"""Properties of what is planned: shares of replicas, manifests, selection of files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
