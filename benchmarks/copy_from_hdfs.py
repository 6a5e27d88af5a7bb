"""Copy all files below a folder of HDFS with one client: ``copy_from_hdfs.py CLIENT URI WEBHDFS TARGET``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from airflow_tf.storage import client
from airflow_tf.storage.options import StorageOptions

_THREADS = 8


def ours(uri: str, target: Path) -> None:
    """Stage with an empty cache, which lies on the same disk."""
    stage_into(uri, target / "data", target / "cache")


def stage_into(uri: str, folder: Path, cache: Path) -> int:
    """Stage and return how many bytes were copied."""
    staged = client.stage(
        uri,
        options=StorageOptions.from_uri(uri),
        target=folder,
        cache_dir=cache,
        cache_bytes=1 << 50,
        on_progress=lambda _text: None,
        refresh=True,
    )
    return staged.copied_bytes


def native(uri: str, target: Path) -> None:
    """Read one range stream of each file with hdfs-native, eight at once."""
    import hdfs_native

    parts = urlsplit(uri)
    store = hdfs_native.Client(f"hdfs://{parts.netloc}")

    def copy(path: str, size: int) -> None:
        local = target / path.removeprefix(f"{parts.path}/")
        local.parent.mkdir(parents=True, exist_ok=True)
        with local.open("wb") as file:
            for chunk in store.read(path).read_range_stream(0, size) if size else ():
                file.write(chunk)

    _in_threads([(each.path, each.length) for each in store.list_status(parts.path, True) if not each.isdir], copy)


def fsspec(uri: str, target: Path) -> None:
    """Copy recursively with hdfs-native's fsspec file system."""
    from hdfs_native.fsspec import HdfsFileSystem

    parts = urlsplit(uri)
    HdfsFileSystem(parts.hostname, parts.port).get(parts.path, str(target), recursive=True)


def hdfscli(uri: str, target: Path) -> None:
    """Download over WebHDFS with HdfsCLI."""
    import hdfs

    store = hdfs.InsecureClient(sys.argv[3], user=os.environ.get("USER", "root"))
    store.download(urlsplit(uri).path, str(target / "data"), n_threads=_THREADS, overwrite=True)


def webhdfs_hook(uri: str, target: Path) -> None:
    """Read each file whole with the hook of Airflow's provider."""
    from airflow.providers.apache.hdfs.hooks.webhdfs import WebHDFSHook  # noqa: PLC0415 -- costs the others seconds

    host = urlsplit(sys.argv[3])
    os.environ["AIRFLOW_CONN_BENCH"] = f"webhdfs://root@{host.hostname}:{host.port}"
    hook = WebHDFSHook("bench")
    root = urlsplit(uri).path
    names = [f"{folder}/{name}" for folder, _, files in hook.get_conn().walk(root) for name in files]
    for name in names:
        local = target / name.removeprefix(f"{root}/")
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(hook.read_file(name))


def _in_threads(files: list[tuple[str, int]], copy: Callable[[str, int], None]) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(copy, *each) for each in files]:
            done.result()


if __name__ == "__main__":
    {"ours": ours, "native": native, "fsspec": fsspec, "hdfscli": hdfscli, "webhdfs_hook": webhdfs_hook}[sys.argv[1]](
        sys.argv[2], Path(sys.argv[4])
    )
