from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_tf.core.errors import DeclarationError, StorageNotFoundError
from airflow_tf.storage.base import FileInfo, Uri, one_text
from airflow_tf.storage.globs import Selection, expand_braces, select, select_finished
from airflow_tf.storage.local import LocalFileSystem
from airflow_tf.storage.options import StorageOptions

TREE = [
    "2024/01/part-0.csv",
    "2024/01/part-1.csv",
    "2024/01/_SUCCESS",
    "2024/01/.part-0.csv.crc",
    "2024/02/part-0.csv",
    "2024/02/_temporary/0/part-9.csv",
    "2024/02/part-1.csv._COPYING_",
    "2025/a1.csv",
    "2025/b1.csv",
    "2025/c1.csv",
    "done/_SUCCESS",
    "done/._SUCCESS.crc",
    "hidden/.x",
    "parts/_SUCCESS",
    "none/part-0",
    "empty/",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in TREE:
        path = tmp_path / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("" if name == "none/part-0" else name)
    return tmp_path


def chosen(tree: Path, pattern: str) -> Selection:
    uri = Uri.parse(f"file://{tree}/{pattern}")
    return select(LocalFileSystem(uri, StorageOptions("file")), uri, lambda: None)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("2024/01/part-0.csv", ["part-0.csv"]),
        ("2024/01/_SUCCESS", ["_SUCCESS"]),
        ("2024", ["01/part-0.csv", "01/part-1.csv", "02/part-0.csv"]),
        ("2024/01/*", ["part-0.csv", "part-1.csv"]),
        ("2024/*/part-*.csv", ["01/part-0.csv", "01/part-1.csv", "02/part-0.csv"]),
        ("2024/0[12]", ["01/part-0.csv", "01/part-1.csv", "02/part-0.csv"]),
        ("202?/*1*", ["2024/01/part-0.csv", "2024/01/part-1.csv", "2025/a1.csv", "2025/b1.csv", "2025/c1.csv"]),
        ("2025/{a,b}1.csv", ["a1.csv", "b1.csv"]),
        ("{2024/02,2025}/*.csv", ["2024/02/part-0.csv", "2025/a1.csv", "2025/b1.csv", "2025/c1.csv"]),
        ("2025/[^a]*", ["b1.csv", "c1.csv"]),
        ("{2025,2025}/a1.csv", ["2025/a1.csv"]),
    ],
)
def test_names_are_relative_to_the_fixed_part(tree: Path, pattern: str, names: list[str]) -> None:
    assert sorted(chosen(tree, pattern).files) == names


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["2024/01", "2024/02"], ["01/part-0.csv", "01/part-1.csv", "02/part-0.csv"]),
        (["2024/01/part-*", "2025/a1.csv"], ["2024/01/part-0.csv", "2024/01/part-1.csv", "2025/a1.csv"]),
        (["2025/a1.csv", "2025/b1.csv"], ["a1.csv", "b1.csv"]),
        (["2025", "2025/a1.csv"], ["a1.csv", "b1.csv", "c1.csv"]),
        (["2024/02/_temporary", "2025/a1.csv"], ["2024/02/_temporary/0/part-9.csv", "2025/a1.csv"]),
        (["2025/a1.csv"], ["a1.csv"]),
    ],
)
def test_several_sources_are_named_below_the_folder_above_them(tree: Path, names: list[str], found: list[str]) -> None:
    assert sorted(several(tree, *names).files) == found


def several(tree: Path, *names: str) -> Selection:
    uri = Uri.parse(one_text([f"file://{tree}/{name}" for name in names]))
    return select(LocalFileSystem(uri, StorageOptions("file")), uri, lambda: None)


@pytest.mark.parametrize("missing", ["2026", "2025/z*", "hidden"])
def test_each_of_several_sources_must_have_data(tree: Path, missing: str) -> None:
    with pytest.raises(StorageNotFoundError, match=re.escape(f"{tree}/{missing}") + "[ :]"):
        several(tree, "2025", missing)


def test_several_sources_must_lie_on_one_file_system() -> None:
    with pytest.raises(DeclarationError, match="hdfs://a:1/x and hdfs://b:1/y lie on different file systems"):
        Uri.parse("hdfs://a:1/x, hdfs://b:1/y")


def test_each_of_several_sources_must_be_finished(tree: Path) -> None:
    uri = Uri.parse(one_text([f"file://{tree}/{name}" for name in ("2024/01", "2024/02")]))
    files = LocalFileSystem(uri, StorageOptions("file"))
    with pytest.raises(StorageNotFoundError, match="2024/02 has no _SUCCESS"):
        select_finished(files, uri, lambda: None)
    (tree / "2024/02/_SUCCESS").touch()
    assert len(select_finished(files, uri, lambda: None).files) == 3


def test_side_files_are_reported(tree: Path) -> None:
    assert sorted(chosen(tree, "2024").skipped) == [
        "01/.part-0.csv.crc",
        "01/_SUCCESS",
        "02/_temporary",
        "02/part-1.csv._COPYING_",
    ]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("2026/*.csv", "no file matches"),
        ("2025/*.parquet", "no file matches"),
        ("done", "0 data files although _SUCCESS exists"),
        ("d*", "0 data files although _SUCCESS exists"),
        ("hidden", r"only side files such as \.x"),
        ("empty", "the folder has no file"),
        ("none", "0 data files; 1 are empty, such as part-0"),
        ("{parts,none}", "0 data files although _SUCCESS exists; 1 are empty"),
        ("missing", "missing"),
    ],
)
def test_a_source_without_data_is_an_error_that_says_why(tree: Path, pattern: str, why: str) -> None:
    with pytest.raises(StorageNotFoundError, match=why):
        chosen(tree, pattern)


def finished(tree: Path, pattern: str) -> Selection:
    uri = Uri.parse(f"file://{tree}/{pattern}")
    return select_finished(LocalFileSystem(uri, StorageOptions("file")), uri, lambda: None)


@pytest.mark.parametrize(
    ("pattern", "unfinished"),
    [
        ("2024/01", None),
        ("2024/01/part-0.csv", None),
        ("2024/0[1]/*", None),
        ("2024", "2024/02"),
        ("202[5]/a1.csv", None),
        ("2025/a1.csv", "2025"),
    ],
)
def test_a_folder_is_finished_if_success_is_in_it_or_above_it(tree: Path, pattern: str, unfinished: str | None) -> None:
    (tree / "_SUCCESS").touch()  # above what any of them names as its fixed part
    if unfinished is None:
        assert finished(tree, pattern).files == chosen(tree, pattern).files
        return
    with pytest.raises(StorageNotFoundError, match=f"{unfinished} has no _SUCCESS"):
        finished(tree, pattern)


def test_what_a_job_writes_after_the_first_look_is_part_of_the_input(tree: Path) -> None:
    class Late(LocalFileSystem):
        """The job writes its last file and _SUCCESS after the first listing."""

        def stat(self, path: str) -> FileInfo:
            if path.endswith("_SUCCESS"):
                (tree / "2025" / "z1.csv").write_text("late")
                (tree / "2025" / "_SUCCESS").touch()
            return super().stat(path)

    uri = Uri.parse(f"file://{tree}/2025")
    assert "z1.csv" in select_finished(Late(uri, StorageOptions("file")), uri, lambda: None).files


def test_a_dangling_link_fails_when_it_is_read_not_when_it_is_listed(tree: Path) -> None:
    (tree / "2025" / "d1.csv").symlink_to("nowhere")
    assert "a1.csv" in chosen(tree, "2025/*").files


def test_braces() -> None:
    assert expand_braces("/a/{b,c{1,2}}/d{,x}") == [
        "/a/b/d", "/a/b/dx", "/a/c1/d", "/a/c1/dx", "/a/c2/d", "/a/c2/dx",
    ]  # fmt: skip
    with pytest.raises(DeclarationError, match="not closed"):
        expand_braces("/a/{b,c")


def test_double_stars_are_refused(tree: Path) -> None:
    with pytest.raises(DeclarationError, match=r"uses \*\*"):
        chosen(tree, "**/x.csv")
