"""What a replica was declared to run, in one digest: a generation that began with another one is told apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.identity import digest
from airflow_tf.core.launch import ReplicaLaunch


def spec_digest(
    launch: ReplicaLaunch, *, inputs: Mapping[str, Mapping[str, Any]], request: DeviceRequest, python: str
) -> str:
    """Return twelve hex digits over program, arguments, session config, inputs' sources and devices.

    Of a script its content counts, of ``module:function`` the name. Of variables only their names do, since a value
    may be a secret; grace and restarts do not: a retry may well change them.
    """
    script = Path(launch.entrypoint)
    program = hashlib.sha256(script.read_bytes()).hexdigest() if script.is_file() else launch.entrypoint
    declared = {
        "count": launch.count,
        "arguments": launch.arguments,
        "environment": sorted(launch.environment),
        "session_config": launch.session_config,
        "api": launch.api,
        "inputs": {name: [str(value["source"]), value.get("shard")] for name, value in inputs.items()},
        "devices": request.to_json(),
        "python": python,
    }
    return digest(program, json.dumps(declared, sort_keys=True))
