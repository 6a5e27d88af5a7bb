"""What a session config is checked against, and what the check returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Api = Literal["tf2", "v1", "auto"]

LOCAL_STRATEGIES = frozenset({"independent", "towers"})
"""Strategies whose replicas do not start a TensorFlow server."""


WHOLE_PERCENT = 100


@dataclass(frozen=True, slots=True)
class ConfigContext:
    """The replica for which a session config is meant.

    ``api`` says what the program uses: ``tf2``, ``v1`` (sessions) or ``auto`` (either, so both are configured).
    ``devices`` is the number of devices of this replica, ``kind`` their kind, ``memory_bytes`` the memory of the
    smallest of them, None if not reported. ``share_percent`` is the replica's part of each device; ``roles`` are
    those of its cluster, as far as they are known.
    """

    api: Api = "auto"
    devices: int = 1
    kind: str = "cpu"
    memory_bytes: int | None = None
    strategy: str = "independent"
    share_percent: int = 100
    roles: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Number of GPUs that the replica sees."""
        return 0 if self.kind == "cpu" else self.devices

    @property
    def shares_gpus(self) -> bool:
        """Tell whether other replicas may use the rest of this one's GPUs, so that its memory must be limited."""
        return self.kind == "gpu" and self.share_percent < WHOLE_PERCENT

    @property
    def has_server(self) -> bool:
        """Tell whether the replica starts a ``tf.distribute.Server``."""
        return self.strategy not in LOCAL_STRATEGIES


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One declared field: ``applied`` (set and read back in the replica) or ``passed`` (given to TensorFlow as is).

    ``by`` names the call that sets it, or says why it has no effect.
    """

    path: str
    value: Any
    status: Literal["applied", "passed"]
    by: str


@dataclass(frozen=True, slots=True)
class ValidatedConfig:
    """A session config as proto JSON with original field names, the plan for each field, and warnings."""

    config: dict[str, Any] = field(default_factory=dict)
    fields: tuple[FieldPlan, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding about one field; ``path`` is relative to the session config, empty for the whole."""

    path: str
    why: str
    todo: str = ""

    @property
    def full_path(self) -> str:
        """Path as the declaration has it."""
        return f"session_config.{self.path}" if self.path else "session_config"

    def __str__(self) -> str:
        """Join path, reason and advice."""
        return f"{self.full_path}: {self.why.rstrip('.')}. {self.todo}".rstrip()


@dataclass(frozen=True, slots=True)
class Judgement:
    """All findings about one session config; with errors, ``fields`` holds only what has a way into the program."""

    config: dict[str, Any]
    fields: tuple[FieldPlan, ...]
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
