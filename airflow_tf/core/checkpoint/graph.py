"""The object graph of a TF2 checkpoint: which Python object each tensor belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError

from airflow_tf.core.descriptors import message_class
from airflow_tf.core.errors import CheckpointError

_OPTIMIZERS = {"optimizer", "_optimizer"}  # attributes of a Keras model or a tf.train.Checkpoint


def optimizer_tensors(graph: bytes) -> frozenset[bytes]:
    """Return the keys of tensors whose objects are reached only through an optimizer, its slots among them.

    The keys themselves do not tell: Keras 3 saves a model's weights as ``optimizer/_trainable_variables``.

    :raises CheckpointError: if it is not a graph.
    """
    nodes = _parse(graph).nodes
    reached, waiting = {0}, [0]
    while waiting:
        for child in nodes[waiting.pop()].children:
            known = 0 <= child.node_id < len(nodes) and child.node_id not in reached
            if known and child.local_name not in _OPTIMIZERS:
                reached.add(child.node_id)
                waiting.append(child.node_id)
    return frozenset(
        attribute.checkpoint_key.encode()
        for number, node in enumerate(nodes)
        if number not in reached
        for attribute in node.attributes
    )


def without_tensors(graph: bytes, keys: Iterable[bytes]) -> bytes:
    """Return a serialized graph in which no object has the tensors ``keys``.

    The objects stay, so that numbers and names still fit; TensorFlow asks only for those that have tensors.

    :raises CheckpointError: if it is not a graph.
    """
    proto = _parse(graph)
    gone = {key.decode("utf-8", "replace") for key in keys}
    emptied = set()
    for number, node in enumerate(proto.nodes):
        kept = [attribute for attribute in node.attributes if attribute.checkpoint_key not in gone]
        if len(kept) < len(node.attributes):
            emptied.add(number)
            copies = [type(attribute).FromString(attribute.SerializeToString()) for attribute in kept]
            del node.attributes[:]
            node.attributes.extend(copies)
    for node in proto.nodes:
        slots = [slot for slot in node.slot_variables if slot.slot_variable_node_id not in emptied]
        copies = [type(slot).FromString(slot.SerializeToString()) for slot in slots]
        del node.slot_variables[:]
        node.slot_variables.extend(copies)
    return bytes(proto.SerializeToString(deterministic=True))


def _parse(graph: bytes) -> Any:  # noqa: ANN401 - generated class
    try:
        proto = message_class(__package__, "bundle.fds", "tensorflow.TrackableObjectGraph").FromString(graph)
    except DecodeError as error:
        raise CheckpointError("the checkpoint's object graph is malformed", todo="Use another checkpoint.") from error
    if not proto.nodes:
        raise CheckpointError("the checkpoint's object graph is empty", todo="Use another checkpoint.")
    return proto
