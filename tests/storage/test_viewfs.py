"""Mount tables of ``viewfs://``, and what is staged and published through one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import google_crc32c
import pytest

from airflow_tf.core.errors import (
    DeclarationError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
)
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.storage import client
from airflow_tf.storage.base import FileSystem, Uri, exists, read_all
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system
from airflow_tf.storage.viewfs import mount_table, read_sites
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import Staging

PREFIX = "fs.viewfs.mounttable."


@pytest.mark.parametrize(
    ("authority", "properties", "table"),
    [
        ("c", {"c.link./data": "hdfs://a/d", "other.link./data": "hdfs://b/d"}, {"/data": "hdfs://a/d"}),
        ("c", {"c.link./a/b/": "hdfs://a/d", "c.homedir": "/user"}, {"/a/b": "hdfs://a/d"}),
        ("c", {"c.link./x": "hdfs://a/d", "c.linkFallback": "hdfs://a/f"}, {"/x": "hdfs://a/d", "/": "hdfs://a/f"}),
        ("c", {"c.linkMergeSlash": "hdfs://a/"}, {"/": "hdfs://a/"}),
        ("", {"default.link./data": "hdfs://a/d"}, {"/data": "hdfs://a/d"}),
    ],
)
def test_a_mount_table_is_read_as_hadoop_does(
    authority: str, properties: Mapping[str, str], table: Mapping[str, str]
) -> None:
    assert mount_table(authority, {f"{PREFIX}{key}": value for key, value in properties.items()}) == table


def test_without_an_authority_the_default_file_system_names_the_table() -> None:
    properties = {"fs.defaultFS": "viewfs://c", f"{PREFIX}c.link./data": "hdfs://a/d"}
    assert mount_table("", properties) == {"/data": "hdfs://a/d"}


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({}, r"viewfs://c/ has no mount table: no property fs\.viewfs\.mounttable\.c\.link"),
        ({f"{PREFIX}cc.link./data": "hdfs://a/d"}, "has no mount table"),
        ({f"{PREFIX}c.linkNfly.minReplication=2./data": "hdfs://a/d"}, "only link, linkFallback"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(properties: Mapping[str, str], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        mount_table("c", properties)


def test_a_link_to_another_kind_of_file_system_is_refused() -> None:
    options = StorageOptions("hdfs", config={f"{PREFIX}c.link./data": "s3a://bucket/d"})
    with pytest.raises(DeclarationError, match=r"/data links to s3a://bucket/d: only hdfs://"):
        open_file_system(Uri.parse("viewfs://c/data"), options)


def test_included_files_of_the_configuration_are_read(tmp_path: Path) -> None:
    included = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="mounts.xml"/>'
    site = "<configuration>{}<property><name>a</name><value> 1 </value></property></configuration>"
    (tmp_path / "core-site.xml").write_text(site.format(included))
    (tmp_path / "mounts.xml").write_text(site.format("").replace("<name>a", "<name>b"))
    assert read_sites(tmp_path) == {"a": "1", "b": "1"}
    (tmp_path / "mounts.xml").write_text("no XML")
    with pytest.raises(DeclarationError, match=r"mounts\.xml cannot be read"):
        read_sites(tmp_path)


@pytest.fixture
def table(hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str) -> dict[str, str]:
    """A table with mount points on two levels over folders with data, without a fallback."""
    for name in ("logs/day=1", "models"):
        hdfs.make_dirs(f"{folder}/{name}")
    hdfs.write(f"{folder}/logs/day=1/1.csv", [b"1,2\n"])
    at = f"{hdfs_cluster.uri}{folder}"
    return {f"{PREFIX}c.link./data/logs": f"{at}/logs", f"{PREFIX}c.link./models": f"{at}/models"}


@pytest.fixture
def view(table: dict[str, str]) -> FileSystem:
    return open_file_system(Uri.parse("viewfs://c/"), StorageOptions("hdfs", config=table))


@pytest.mark.hdfs
def test_the_tree_of_the_table_is_shown_with_the_folders_that_it_implies(view: FileSystem) -> None:
    assert [info.path for info in view.list("/")] == ["/data", "/models"]
    assert [info.path for info in view.list("/data")] == ["/data/logs"]
    assert [info.path for info in view.list("/data/logs/day=1")] == ["/data/logs/day=1/1.csv"]
    assert view.stat("/data").is_dir
    assert view.stat("/data/logs/day=1/1.csv").size == 4


@pytest.mark.hdfs
@pytest.mark.parametrize("path", ["/nowhere/x", "/data2", "/data/log"])
def test_a_path_under_no_mount_point_is_an_error_that_names_those_that_are_there(view: FileSystem, path: str) -> None:
    for call in (view.stat, view.make_dirs, lambda path: list(view.list(path)), lambda path: view.write(path, [b""])):
        with pytest.raises(StorageNotFoundError, match=rf"viewfs://c{path}: .*no mount point.* /data/logs, /models"):
            call(path)


@pytest.mark.hdfs
def test_mount_points_are_neither_removed_nor_renamed_and_nothing_moves_between_them(view: FileSystem) -> None:
    for path in ("/models", "/data", "/"):
        with pytest.raises(StoragePermissionError, match="it is a mount point"):
            view.delete(path)
        with pytest.raises(StoragePermissionError, match="it is a mount point"):
            view.rename(path, "/models/x")
    with pytest.raises(StorageError, match="/data/logs and /models are different mount points"):
        view.rename("/data/logs/day=1/1.csv", "/models/1.csv")
    view.make_dirs("/models")
    view.make_dirs("/data")
    assert exists(view, "/data/logs/day=1/1.csv")


@pytest.mark.hdfs
def test_a_fallback_serves_what_no_link_does(
    view: FileSystem, table: dict[str, str], hdfs: FileSystem, folder: str, hdfs_cluster: HdfsCluster
) -> None:
    hdfs.make_dirs(f"{folder}/rest/models")  # hidden by the link
    hdfs.write(f"{folder}/rest/1.csv", [b"rest"])
    config = table | {f"{PREFIX}c.linkFallback": f"{hdfs_cluster.uri}{folder}/rest"}
    whole = open_file_system(Uri.parse("viewfs://c/"), StorageOptions("hdfs", config=config))
    assert [info.path for info in whole.list("/")] == ["/data", "/models", "/1.csv"]
    assert [info.path for info in whole.list("/data")] == ["/data/logs"]
    assert read_all(whole, "/1.csv") == b"rest"
    assert not exists(whole, "/nowhere")


@pytest.mark.hdfs
@pytest.mark.parametrize("given", ["connection", "folder"])
def test_a_source_is_planned_and_staged_and_a_result_published_through_the_table(
    given: str,
    table: dict[str, str],
    view: FileSystem,
    staging: Staging,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if given == "connection":
        declared = {"conn_type": "hdfs_native", "extra": {"config": table}}
        monkeypatch.setenv("AIRFLOW_CONN_VIEW", json.dumps(declared))
        options = HdfsHook("view").storage_options("viewfs://c/data")
    else:
        entries = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in table.items()]
        (tmp_path / "core-site.xml").write_text(f"<configuration>{''.join(entries)}</configuration>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        options = HdfsHook(None).storage_options("viewfs://c/data")
    for source in ("viewfs://c/data", "viewfs://c/data/l*/day=*/*.csv"):
        assert client.measure(source, options=options, cache_dir=tmp_path / "none").bytes == 4
        staged = staging(source, options=options, refresh=True)
        assert [file.name.rpartition("/")[2] for file in staged.files] == ["1.csv"]
        assert staged.files[0].source == "viewfs://c/data/logs/day=1/1.csv"
        assert (Path(staged.folder) / staged.files[0].name).read_bytes() == b"1,2\n"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").write_bytes(b"model")
    client.publish(
        tmp_path / "out",
        "viewfs://c/models/v=1",
        options=options,
        manifest=PublishManifest(1, "digest", {"model": {"size": 5, "crc32c": google_crc32c.value(b"model")}}),
        on_progress=staging.lines.append,
    )
    assert read_all(view, "/models/v=1/model") == b"model"
    with pytest.raises(StorageNotFoundError, match="no mount point"):
        staging("viewfs://c/nowhere/1.csv", options=options)
