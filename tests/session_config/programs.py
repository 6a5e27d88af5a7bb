"""Import TensorFlow once, then fork one child per program: apply its session config there and run it.

Standard input: JSON list of {name, config, api, gpus, memory_bytes, source}; standard output: JSON {name: {rc, output}}.
"""

import importlib
import json
import os
import sys
import tempfile

import tensorflow as tf  # noqa: TID253 - a program of its own

from airflow_tf.runtime import session_config


def pretend_gpus(count):
    """Let TensorFlow's own Python code believe in GPUs; enough for tf.config, not for running an operation."""
    context = importlib.import_module("tensorflow.python.eager.context")
    ours = context.context()
    ours._initialize_physical_devices()
    for index in range(count):
        gpu = context.PhysicalDevice(name=f"/physical_device:GPU:{index}", device_type="GPU")
        ours._physical_device_to_index[gpu] = len(ours._physical_devices)
        ours._physical_devices.append(gpu)
        ours._visible_device_list.append(gpu)
        ours._memory_growth_map[gpu] = None


def child(case):
    pretend_gpus(case.get("gpus", 0))
    report = session_config.apply(case["config"], api=case["api"], memory_bytes=case.get("memory_bytes"))
    exec(case["source"], {"tf": tf, "report": report, "__name__": "__main__"})


def run(case):
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            rc = 1
            try:
                child(case)
                rc = 0
            except BaseException as error:  # noqa: BLE001 - the parent reads it
                sys.stdout.write(f"{type(error).__name__}: {error}\n")
            finally:
                sys.stdout.flush()
                os._exit(rc)
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        return {"rc": os.waitstatus_to_exitcode(status), "output": output.read()}


sys.stdout.write(json.dumps({case["name"]: run(case) for case in json.load(sys.stdin)}))
