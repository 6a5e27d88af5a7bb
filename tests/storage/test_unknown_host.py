"""A name that does not exist is a wrong URI, not an outage."""

from __future__ import annotations

import pytest

from airflow_tf.core.errors import StorageError
from airflow_tf.storage.client import probe
from airflow_tf.storage.options import StorageOptions


@pytest.mark.parametrize("uri", ["hdfs://no-such-host.invalid:8020/x", "webhdfs://no-such-host.invalid:9870/x"])
def test_a_host_that_does_not_exist_is_not_waited_for(uri: str) -> None:
    with pytest.raises(StorageError) as caught:
        probe(uri, options=StorageOptions.from_uri(uri))
    assert not caught.value.retryable
    assert caught.value.why == "this host cannot resolve the name no-such-host.invalid"
    assert caught.value.todo


def test_a_name_without_a_port_that_no_configuration_has_is_told() -> None:
    uri = "hdfs://no-such-service/x"
    with pytest.raises(StorageError, match="no NameNode is configured under this name") as caught:
        probe(uri, options=StorageOptions.from_uri(uri))
    assert "Add the port" in caught.value.todo


def test_one_of_several_namenodes_may_be_unknown() -> None:
    options = StorageOptions("webhdfs", url="http://no-such-1.invalid:9870;http://no-such-2.invalid:9870")
    with pytest.raises(StorageError) as caught:
        probe("webhdfs://cluster/x", options=options)
    assert caught.value.retryable
