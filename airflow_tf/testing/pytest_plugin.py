"""Pytest plug-in of airflow_tf. Every pytest run of an environment with the package loads it, so it imports little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow_tf.testing.hdfs import HdfsCluster
    from airflow_tf.testing.postgres import PostgresServer


@pytest.fixture(scope="session")
def hdfs_cluster() -> Iterator[HdfsCluster]:
    """Start a real HDFS on first use and share it for the session; a test that breaks it must repair it."""
    from airflow_tf.testing.hdfs import HdfsCluster  # noqa: PLC0415 -- only sessions that use HDFS pay for it

    with HdfsCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Start a real PostgreSQL on first use and share it for the session; a test that stops it must start it again."""
    from airflow_tf.testing.postgres import PostgresServer  # noqa: PLC0415 -- only sessions that use it pay for it

    with PostgresServer() as server:
        yield server
