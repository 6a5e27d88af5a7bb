"""Settings of an installation, read from Airflow's configuration above this layer and handed down."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_tf.core.devices import Device


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are and how long to wait.

    :param home: ``$AIRFLOW_HOME/airflow_tf`` (run folders, ledger, cache), on a local disk.
    :param ledger_url: SQLAlchemy URL of the ledger; may hold a password, so it is not part of ``repr``.
    :param lock_dir: host-wide folder of device locks.
    :param cpu_slots: number of CPU slots that count as devices of kind ``cpu``.
    :param static_devices: devices declared in the configuration (kind ``static``).
    :param cache_bytes: budget of the staging cache.
    :param reservation_seconds: life of a reservation that no supervisor has confirmed or renewed.
    :param retention_seconds: how long after their last use run folders and rows of the ledger are kept.
    :param output_bytes: disk that the output of one attempt may take; what is older is compressed, then dropped.
    :param own_scope: ``auto`` starts a supervisor outside the systemd service that would end it, ``off`` does not.
    :param tensorboard_url: address of a TensorBoard over the run folders; empty: there is none.
    :param hdfs_browser_url: address at which files of HDFS are shown; empty: known of WebHDFS only.
    :param callbacks: packages whose functions a declaration may have called, wherever they are.
    """

    home: Path
    ledger_url: str = field(repr=False)
    lock_dir: Path
    cpu_slots: int
    static_devices: tuple[Device, ...] = ()
    cache_bytes: int = 100 * 2**30
    reservation_seconds: float = 300.0
    retention_seconds: float = 30 * 86400.0
    output_bytes: int = 2**30
    own_scope: str = "auto"
    tensorboard_url: str = ""
    hdfs_browser_url: str = ""
    callbacks: tuple[str, ...] = ()

    @property
    def cache_dir(self) -> Path:
        """Folder of the staging cache."""
        return self.home / "cache"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self) | {"home": str(self.home), "lock_dir": str(self.lock_dir)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        """Rebuild settings written by :meth:`to_json`."""
        devices = tuple(Device(**device) for device in data["static_devices"])
        paths = {"home": Path(data["home"]), "lock_dir": Path(data["lock_dir"])}
        return cls(**(data | paths | {"static_devices": devices, "callbacks": tuple(data.get("callbacks", ()))}))
