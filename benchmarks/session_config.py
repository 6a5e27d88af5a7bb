"""Check a session config without TensorFlow, beside TensorFlow's own parser: first load, time of a check, memory.

Each run is a process of its own. The reference parses the same configs with ``tf.compat.v1.ConfigProto``, which checks
names and types only, after ``import tensorflow``.
"""

from __future__ import annotations

import json
import subprocess
import sys

from harness import SHOWN, Row, arguments, pairs, report

_CONFIG = {
    "allow_soft_placement": True,
    "device_count": {"CPU": 2, "GPU": 1},
    "intra_op_parallelism_threads": 4,
    "inter_op_parallelism_threads": 2,
    "gpu_options": {
        "visible_device_list": "0",
        "experimental": {"virtual_devices": [{"memory_limit_mb": [1024.0, 2048.0]}]},
    },
    "device_filters": ["/job:ps", "/job:worker/task:0"],
    "graph_options": {
        "optimizer_options": {"global_jit_level": "ON_1"},
        "rewrite_options": {"remapping": "OFF", "constant_folding": "ON"},
    },
}

_MEASURE = """
import json, resource, sys, time
config, count = json.loads(sys.argv[1]), int(sys.argv[2])
began = time.perf_counter()
{load}
check(config)
loaded = time.perf_counter()
for _ in range(count):
    check(config)
done = time.perf_counter()
print(json.dumps({{
    "seconds of first load and check": loaded - began,
    "milliseconds of a check": (done - loaded) / count * 1000,
    "MB RSS": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "TensorFlow": float("tensorflow" in sys.modules),
}}))
"""
_OURS = """
from airflow_tf.core.session_config import ConfigContext, validate
context = ConfigContext(api="v1", devices=1, kind="gpu", strategy="v1_cluster")
def check(value): return validate(value, context)
"""
_TENSORFLOW = """
import tensorflow
from google.protobuf.json_format import ParseDict
def check(value): return ParseDict(value, tensorflow.compat.v1.ConfigProto())
"""
_TARGETS = {
    "seconds of first load and check": "ours <= 0.2",
    "milliseconds of a check": "ours <= 5",
    "MB RSS": "ours <= 40",
    "TensorFlow": "ours <= 0",
}


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__ or "")
    count = 100 if options.quick else 1000
    ours, reference = pairs(2 if options.quick else 5, lambda: _run(_OURS, count), lambda: _run(_TENSORFLOW, count))
    rows = [
        Row("one config", name, value, reference[name], "tensorflow", _TARGETS.get(name, SHOWN))
        for name, value in ours.items()
    ]
    report(rows, options.json)


def _run(load: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-c", _MEASURE.format(load=load), json.dumps(_CONFIG), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
