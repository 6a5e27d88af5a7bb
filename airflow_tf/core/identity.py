"""Who is who: gangs, views, fencing tokens and the folders named after them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FENCE_VARIABLE = "AIRFLOW_TF_FENCE"
"""Environment variable that marks every process of a replica's tree."""

TOKEN_LENGTH = 48
"""Characters of a fencing token; fixed, because a forked replica overwrites its zygote's placeholder in place."""


def digest(*parts: object, length: int = 12) -> str:
    """Return the first ``length`` hex digits of SHA-256 over ``parts``, unambiguously joined."""
    joined = "\x1f".join(str(part) for part in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:length]


def readable(text: str, limit: int = 40) -> str:
    """Return ``text`` reduced to letters, digits, ``.``, ``_`` and ``-`` for use in a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:limit] or "x"


def distinct(text: str) -> str:
    """Return :func:`readable` text that also tells apart what would be cut off: groups and stages make ids long."""
    name = readable(text)
    return name if name == text else f"{name}-{digest(text, length=8)}"


@dataclass(frozen=True, slots=True)
class GangKey:
    """Identity of a gang: the replicas of one train task in one DAG run; ``installation`` is the ledger's id."""

    installation: str
    dag_id: str
    run_id: str
    task_id: str

    @property
    def key(self) -> str:
        """Twenty hex digits that name this gang in the ledger, in sockets and in folders."""
        # -1: once an index of mapped groups; it stays, so that runs of older ledgers keep their keys
        return digest(self.installation, self.dag_id, self.run_id, self.task_id, -1, length=20)

    @property
    def label(self) -> str:
        """A line for people."""
        return f"{self.dag_id} / {self.run_id} / {self.task_id}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class View:
    """One try of one task instance that looks at a replica.

    ``first_try`` is ``max_tries - retries + 1``: it grows only when a user clears the task.
    """

    ti_id: str
    try_number: int
    first_try: int

    def is_newer_than(self, other: View | None) -> bool:
        """Tell whether this view takes the replica over from ``other``."""
        return other is None or (self.try_number, self.first_try) >= (other.try_number, other.first_try)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self)


def make_token(installation: str, fence: int, replica: int, attempt: int) -> str:
    """Return the fencing token of one attempt: ``TOKEN_LENGTH`` characters, unique, sortable by fence.

    The ledger gives ``fence`` out once, ever growing, so an older token can never pass for a newer one.
    """
    token = f"{installation[:16]}.{fence:010d}.{replica:05d}.{attempt:04d}"
    return token.ljust(TOKEN_LENGTH, "-")[:TOKEN_LENGTH]


@dataclass(frozen=True, slots=True)
class RunFolders:
    """Folders of one DAG run below ``home`` (by default ``$AIRFLOW_HOME/airflow_tf``), all made 0700 by their users."""

    home: Path
    dag_id: str
    run_id: str

    @property
    def root(self) -> Path:
        """Folder of the run."""
        name = f"{readable(self.dag_id)}--{readable(self.run_id)}--{digest(self.dag_id, self.run_id, length=8)}"
        return self.home / "runs" / name

    def staged(self, input_name: str) -> Path:
        """Folder of read-only links to one staged input; its ``manifest.json`` lies beside it."""
        return self.root / "inputs" / distinct(input_name)

    def gang(self, key: GangKey) -> Path:
        """Folder of one gang: ``supervisor.lock``, ``supervisor.log`` and the replicas."""
        return self.root / f"{readable(key.task_id)}--{key.key[:8]}"

    def aggregate(self, task_id: str) -> Path:
        """Folder in which an aggregation task builds its checkpoint."""
        return self.root / f"{distinct(task_id)}--aggregate"
