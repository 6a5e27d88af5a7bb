"""What Airflow learns of this provider: modules, connection type, configuration, commands.

Airflow reads it while its configuration is being set up, so nothing of Airflow may be imported here.
"""

from __future__ import annotations

from typing import Any

from airflow_tf import __version__

_INTEGRATION = "TensorFlow"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-tf",
        "name": _INTEGRATION,
        "description": "Declarative TensorFlow training on GPU hosts from HDFS data.",
        "versions": [__version__],
        "integrations": [
            {"integration-name": _INTEGRATION, "external-doc-url": "https://www.tensorflow.org/", "tags": ["software"]},
            {
                "integration-name": "HDFS",
                "external-doc-url": "https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/HdfsDesign.html",
                "tags": ["apache"],
            },
        ],
        "operators": _modules(
            "airflow_tf.operators.train",
            "airflow_tf.operators.sweep",
            "airflow_tf.operators.checkpoint",
            "airflow_tf.operators.evaluate",
            "airflow_tf.operators.export",
        ),
        "sensors": _modules("airflow_tf.sensors.devices"),
        "triggers": _modules("airflow_tf.triggers.devices", "airflow_tf.triggers.replica"),
        "hooks": _modules("airflow_tf.hooks.hdfs"),
        "transfers": [
            {
                "source-integration-name": "HDFS",
                "target-integration-name": _INTEGRATION,
                "python-module": "airflow_tf.transfers.hdfs_to_local",
            },
            {
                "source-integration-name": _INTEGRATION,
                "target-integration-name": "HDFS",
                "python-module": "airflow_tf.transfers.local_to_hdfs",
            },
        ],
        "task-decorators": [{"name": "tensorflow", "class-name": "airflow_tf.operators.decorated.tensorflow_task"}],
        "filesystems": ["airflow_tf.hooks.filesystems"],
        "connection-types": [_HDFS_CONNECTION],
        "config": {"airflow_tf": {"description": "Training with TensorFlow on this host.", "options": _OPTIONS}},
        "extra-links": [
            "airflow_tf.hooks.links.TrainingLink",
            "airflow_tf.hooks.links.TensorBoardLink",
            "airflow_tf.hooks.links.PlacementLink",
            "airflow_tf.hooks.links.HdfsBrowserLink",
        ],
        "cli": ["airflow_tf.cli.get_cli_commands"],
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": list(names)}]


def _option(description: str, kind: str, default: str | None, example: str | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": kind,
        "example": example,
        "default": default,
    }


_OPTIONS = {
    "home": _option(
        "Folder of run folders, ledger and cache, on a local disk. Empty: ``airflow_tf`` in ``AIRFLOW_HOME``.",
        "string",
        "",
        "/data/airflow_tf",
    ),
    "ledger_url": _option(
        "SQLAlchemy URL of the ledger of devices and runs: an SQLite file on a local disk, or PostgreSQL (extra"
        " ``postgres``) for several hosts. Empty: an SQLite file in ``home``. It must not be Airflow's own database.",
        "string",
        "",
        "postgresql+psycopg://user@host/airflow_tf",
    )
    | {"sensitive": True},
    "lock_dir": _option(
        "Folder of device locks. All Airflow installations and users of one host must name the same.",
        "string",
        "/run/lock/airflow_tf",
    ),
    "cpu_slots": _option(
        "Number of CPU slots that count as devices of kind cpu. Empty: the number of processors.", "string", "", "4"
    ),
    "static_devices": _option(
        "Devices of kind static (accelerators that NVML does not know), as a JSON list of objects with uuid and, if"
        " wanted, name, visible (the value of ``CUDA_VISIBLE_DEVICES``) and memory.",
        "string",
        "",
        '[{"uuid": "npu-0", "name": "NPU", "visible": "0", "memory": "16GiB"}]',
    ),
    "cache_bytes": _option("Largest size of the staging cache.", "string", "100GiB", "2TiB"),
    "reservation_seconds": _option(
        "How long devices stay reserved for a training task that has not started.", "float", "300"
    ),
    "output_bytes": _option(
        "Disk that the output of one attempt may take; what is older is compressed, then dropped.", "string", "1GiB"
    ),
    "own_scope": _option(
        "``auto``: supervisors run in systemd scopes of their own where a service would end them; ``off``: never.",
        "string",
        "auto",
    ),
    "tensorboard_url": _option(
        "Address of a TensorBoard over the folder ``runs`` in ``home``, for a link on training tasks. ``{dag_id}``,"
        " ``{run_id}`` and ``{folder}`` (the run's folder there) are filled in. Empty: no link.",
        "string",
        "",
        "https://tensorboard.example.com/?runFilter={folder}",
    ),
    "hdfs_browser_url": _option(
        "Address at which files of HDFS are shown, for a link on tasks that stage or publish. ``{path}`` and"
        " ``{authority}`` (host and port, or name service) are filled in. Empty: the NameNode's own browser where the"
        " URI is one of WebHDFS, else no link.",
        "string",
        "",
        "https://namenode.example.com:9871/explorer.html#{path}",
    ),
    "callbacks": _option(
        "Packages whose functions declarations may name as callbacks, separated by commas, besides those in the folders"
        " of DAGs and plugins. A function of such a package is called with whatever a declaration says.",
        "string",
        "",
        "company.oncall",
    ),
    "retention_seconds": _option(
        "How long after their last use ``airflow tf prune`` keeps run folders and rows of the ledger, like ``30d``.",
        "string",
        "30d",
    ),
}


def _field(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], "default": None}}


_HDFS_CONNECTION = {
    "connection-type": "hdfs_native",
    "hook-class-name": "airflow_tf.hooks.hdfs.HdfsHook",
    "hook-name": "HDFS (native client)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "password"],
        "relabeling": {"host": "NameNodes or name service", "login": "HDFS user"},
        "placeholders": {"host": "nn1.example.com,nn2.example.com", "port": "8020", "login": "airflow"},
    },
    "conn-fields": {
        "config": _field("Hadoop properties", "A JSON object of client properties, as in hdfs-site.xml."),
        "config_dir": _field("Hadoop configuration folder", "Folder with core-site.xml and hdfs-site.xml."),
        "kerberos_principal": _field("Kerberos principal", "Principal of the keytab."),
        "kerberos_keytab": _field("Kerberos keytab", "Path of a keytab on the hosts that stage and publish."),
        "kerberos_cache": _field("Kerberos cache", "Path of a ticket cache, if not the default one."),
        "token_file": _field("Delegation tokens", "Path of a file of Hadoop tokens, used instead of a ticket."),
    },
}
