"""After what time a peer is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Times after which TensorFlow raises where it would otherwise wait without end.

    :param register_seconds: for all replicas to appear at the start.
    :param heartbeat_seconds: without a sign of life from a peer's process.
    :param collective_seconds: for one collective operation: longer than one replica may be busy with something else,
        such as saving, while the others wait for it.
    """

    register_seconds: float = 300.0
    heartbeat_seconds: float = 10.0
    collective_seconds: float = 600.0
