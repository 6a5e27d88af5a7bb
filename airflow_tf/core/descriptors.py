"""Protobuf messages of TensorFlow without TensorFlow: a private pool filled from a shipped FileDescriptorSet."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


@cache
def pool(package: str, resource: str) -> descriptor_pool.DescriptorPool:
    """Return a pool holding the descriptors of ``resource`` in ``package``.

    The pool is private because the default one would clash with TensorFlow's own registration of the same files
    if a process later imports it. See scripts/build_descriptors.py for where the files come from.
    """
    data = resources.files(package).joinpath(resource).read_bytes()
    result = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        result.AddSerializedFile(file.SerializeToString())
    return result


@cache
def message_class(package: str, resource: str, name: str) -> Any:  # noqa: ANN401 - generated class, unknown to mypy
    """Return the message class ``name``, like ``tensorflow.ConfigProto``."""
    return message_factory.GetMessageClass(pool(package, resource).FindMessageTypeByName(name))
