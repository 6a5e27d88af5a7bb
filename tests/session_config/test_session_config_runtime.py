"""Session configs applied in real TensorFlow processes, to TF2 programs and to sessions, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from airflow_tf.core.session_config.plan import APPLIED
from airflow_tf.runtime import session_config

pytestmark = pytest.mark.tensorflow

GRAPH = "v1 = tf.compat.v1; v1.disable_eager_execution()\n"
ON_GPU_1 = dedent("""
    with tf.device("/gpu:1"):
        product = tf.matmul([[1.0, 2.0]], [[3.0], [4.0]])
""")

CASES = [
    # name, api, config, program, what its output must hold (exit code 0), or "!" and what it must fail with
    ("tf2 logical CPUs", "tf2", {"device_count": {"CPU": 2}}, "print(len(tf.config.list_logical_devices('CPU')), 'CPUs')", "2 CPUs"),
    ("v1 CPUs", "v1", {"device_count": {"CPU": 2}}, GRAPH + "print(len(v1.Session().list_devices()), 'CPUs')", "2 CPUs"),
    (
        "auto CPUs", "auto", {"device_count": {"CPU": 2}},
        "print(len(tf.config.list_logical_devices('CPU')), 'eager')\n" + GRAPH
        + "print(len(v1.Session(config=v1.ConfigProto()).list_devices()), 'session')",
        "2 eager\n2 session",
    ),
    ("tf2 soft placement", "tf2", {"allow_soft_placement": True}, ON_GPU_1 + "print(product.numpy())", "[[11.]]"),
    ("tf2 hard placement", "tf2", {"allow_soft_placement": False}, ON_GPU_1, "!InvalidArgumentError: Could not satisfy device"),
    (
        "function hard placement", "tf2", {"allow_soft_placement": False},
        "@tf.function\ndef f():\n    with tf.device('/gpu:1'): return tf.matmul([[1.0]], [[2.0]])\nf()",
        "!InvalidArgumentError",
    ),
    ("v1 soft placement", "v1", {"allow_soft_placement": True}, GRAPH + ON_GPU_1 + "print(v1.Session().run(product))", "[[11.]]"),
    (
        "v1 hard placement", "v1", {"allow_soft_placement": False},
        GRAPH + ON_GPU_1 + "v1.Session(config=v1.ConfigProto(allow_soft_placement=True)).run(product)",
        "!InvalidArgumentError",
    ),
    (
        "thread pools", "tf2", {"intra_op_parallelism_threads": 3, "inter_op_parallelism_threads": 5},
        "t = tf.config.threading; print(t.get_intra_op_parallelism_threads(), t.get_inter_op_parallelism_threads())", "3 5",
    ),
    (
        "threads really made", "v1", {"intra_op_parallelism_threads": 3, "inter_op_parallelism_threads": 5},
        GRAPH + "import os\ndef names(): return [open(f'/proc/self/task/{t}/comm').read() for t in os.listdir('/proc/self/task')]\n"
        "before = len(names()); v1.Session().run(tf.add_n([tf.ones(9)] * 3)); after = names()\n"
        "inter, runner = (sum(text in name for name in after) for text in ('tf_Compute', 'tf_graph_runner'))\n"
        "print(inter, 'inter', len(after) - before - inter - runner, 'intra')",
        "5 inter 3 intra",
    ),
    ("log placement", "tf2", {"log_device_placement": True}, "tf.matmul([[1.0]], [[2.0]])", "Executing op"),
    (
        "the rest of the script's config stays", "v1", {"device_count": {"CPU": 2}},
        GRAPH + "s = v1.Session(config=v1.ConfigProto(isolate_session_state=True, device_count={'CPU': 4}))\n"
        "print(s._config.isolate_session_state, len(s.list_devices()))",
        "True 2",
    ),
    (
        "the declaration wins and says so once", "v1", {"device_count": {"CPU": 2}},
        GRAPH + "for _ in range(3): v1.Session(config=v1.ConfigProto(device_count={'CPU': 4}))",
        "session_config.device_count.CPU: 2 of the declaration replaces 4 of the program",
    ),
    (
        "other fields reach the session", "v1",
        {"graph_options": {"rewrite_options": {"remapping": "OFF"}}, "session_inter_op_thread_pool": [{"num_threads": 2}]},
        GRAPH + "c = v1.Session()._config; print(c.graph_options.rewrite_options.remapping, c.session_inter_op_thread_pool[0].num_threads)\n"
        "print(report['passed'])",
        "2 2\n{'graph_options.rewrite_options.remapping': 'ConfigProto of every session'",
    ),
    ("lists are not doubled", "v1", {"device_filters": ["/job:ps"]},
     GRAPH + "print(v1.Session(config=v1.ConfigProto(device_filters=['/job:a']))._config.device_filters)", "['/job:ps']"),
    (
        "operation timeout", "v1", {"operation_timeout_in_ms": 300},
        GRAPH + "v1.Session().run(tf.queue.FIFOQueue(1, tf.int32).dequeue())", "!DeadlineExceededError",
    ),
    (
        "interactive session", "v1", {"device_count": {"CPU": 3}},
        GRAPH + "s = v1.InteractiveSession(); print(len(s.list_devices()), s._config.gpu_options.allow_growth)", "3 True",
    ),
    (
        "monitored session", "auto", {"device_count": {"CPU": 2}},
        GRAPH + "with tf.device('/cpu:1'): c = tf.constant(4) + 3\nwith v1.train.MonitoredTrainingSession() as s: print(s.run(c))",
        "7",
    ),
    (
        "server", "v1", {"device_count": {"CPU": 3}, "intra_op_parallelism_threads": 1},
        GRAPH + "server = tf.distribute.Server.create_local_server()\n"
        "print(len(v1.Session(server.target).list_devices()), server.server_def.default_session_config.intra_op_parallelism_threads)",
        "3 1",
    ),
    ("v1 script in an auto replica", "auto", {"allow_soft_placement": False},
     GRAPH + ON_GPU_1 + "v1.Session().run(product)", "!InvalidArgumentError"),
    ("keras", "auto", {"device_count": {"CPU": 2}, "inter_op_parallelism_threads": 2},
     ("import keras, numpy as np\nm = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]); m.compile('sgd', 'mse')\n"
     "m.fit(np.ones((8, 2)), np.ones(8), verbose=0); print('fitted')"), "fitted"),
    ("gpu fields on a CPU slot", "tf2", {"gpu_options": {"allow_growth": True, "visible_device_list": "0"}},
     "print(report['applied'], report['passed'])",
     "{} {'gpu_options.allow_growth': 'no GPU here', 'gpu_options.visible_device_list': 'no GPU here'}"),
    ("a wrong config is TensorFlow's error", "v1", {"device_count": {"CPU": 2}},
     GRAPH + "v1.Session(config={'device_count': 1})", "!TypeError: Argument `config` must be a tf.ConfigProto"),
    ("nothing is initialised", "auto",
     {"device_count": {"CPU": 2}, "allow_soft_placement": False, "inter_op_parallelism_threads": 1},
     "from tensorflow.python.eager import context; print(context.context()._context_handle)", "None"),
    ("the report", "auto", {"allow_soft_placement": False, "intra_op_parallelism_threads": 2}, "import json; print(json.dumps(report))",
     ('{"asked": {"allow_soft_placement": false, "intra_op_parallelism_threads": 2}, "api": "auto", "applied": '
     '{"allow_soft_placement": "tf.config.set_soft_device_placement and ConfigProto of every session", '
     '"intra_op_parallelism_threads": "tf.config.threading.set_intra_op_parallelism_threads and ConfigProto of every session"}, "passed": {}}')),
    ("a field that TF2 cannot set", "tf2", {"isolate_session_state": True}, "", "!SessionConfigError: session_config.isolate_session_state"),
]  # fmt: skip

EFFECTIVE = "from tensorflow.python.eager import context; gpu = context.context().config.gpu_options\n"

# The same on two pretended GPUs with 16 GiB each: TensorFlow's own Python code decides what becomes effective.
GPU_CASES = [
    ("growth", "tf2", {"gpu_options": {"allow_growth": True}}, EFFECTIVE + "print(gpu.allow_growth)", "True"),
    ("no growth", "tf2", {"gpu_options": {"allow_growth": False}}, EFFECTIVE + "print(gpu.allow_growth)", "False"),
    (
        "fraction", "tf2", {"gpu_options": {"per_process_gpu_memory_fraction": 0.25}},
        EFFECTIVE + "print([list(d.memory_limit_mb) for d in gpu.experimental.virtual_devices], report['applied'])",
        ("[[4096.0], [4096.0]] {'gpu_options.per_process_gpu_memory_fraction': "
         "'tf.config.set_logical_device_configuration(memory_limit=4096 MiB)'}"),
    ),
    (
        "fraction in a session of an auto replica", "auto", {"gpu_options": {"per_process_gpu_memory_fraction": 0.25}},
        GRAPH + "o = v1.Session()._config.gpu_options; print(o.per_process_gpu_memory_fraction, len(o.experimental.virtual_devices))",
        "0.25 0",
    ),
    ("fraction zero", "tf2", {"gpu_options": {"per_process_gpu_memory_fraction": 0.0}}, "print(report['applied'])", "left to TensorFlow"),
    ("visible", "tf2", {"gpu_options": {"visible_device_list": "1", "allow_growth": True}},
     EFFECTIVE + "print(gpu.visible_device_list, gpu.allow_growth)", "1 True"),
    ("visible and count", "tf2", {"gpu_options": {"visible_device_list": "0,1"}, "device_count": {"GPU": 1}},
     EFFECTIVE + "print(gpu.visible_device_list)", "0\n"),
    ("no GPU wanted", "tf2", {"device_count": {"GPU": 0}}, "print(tf.config.get_visible_devices('GPU'))", "[]"),
    ("growth that TensorFlow drops", "tf2", {"gpu_options": {"allow_growth": True}, "device_count": {"CPU": 2}}, "",
     "!session_config.gpu_options.allow_growth: asked for True, but TensorFlow uses False"),
    ("growth with a limit", "tf2", {"gpu_options": {"allow_growth": True, "per_process_gpu_memory_fraction": 0.5}}, "",
     "!session_config.gpu_options.allow_growth"),
]  # fmt: skip

ALONE = [
    (
        "TensorFlow was used before",
        (
            "import tensorflow as tf; tf.constant(1) + 1\n"
            "from airflow_tf.runtime import session_config\n"
            "session_config.apply({'inter_op_parallelism_threads': 2}, api='tf2', memory_bytes=None)"
        ),
        {"CUDA_VISIBLE_DEVICES": "-1"},
        "session_config.inter_op_parallelism_threads: Inter op parallelism cannot be modified after initialization",
    ),
    (
        "a GPU is missing",
        (
            "from airflow_tf.runtime import session_config\n"
            "session_config.apply({'gpu_options': {'allow_growth': True}}, api='tf2', memory_bytes=None)"
        ),
        {"CUDA_VISIBLE_DEVICES": "GPU-1234"},
        "session_config.gpu_options.allow_growth: TensorFlow sees no GPU in this process",
    ),
]


@pytest.fixture(scope="module")
def results():
    cases = [
        {"name": name, "api": api, "config": config, "source": source, "gpus": gpus, "memory_bytes": 16 << 30}
        for group, gpus in ((CASES, 0), (GPU_CASES, 2))
        for name, api, config, source, _ in group
    ]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("programs.py"))],
        input=json.dumps(cases), capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "expected"),
    [pytest.param(case[0], case[4], id=case[0]) for case in CASES + GPU_CASES],
)
def test_program(results, name, expected):
    result = results[name]
    assert expected.removeprefix("!") in result["output"]
    assert result["rc"] == (1 if expected.startswith("!") else 0), result["output"]


def test_a_replaced_value_is_said_once(results):
    assert results["the declaration wins and says so once"]["output"].count("of the declaration replaces") == 1


@pytest.mark.parametrize(
    ("source", "environment", "expected"), [case[1:] for case in ALONE], ids=[case[0] for case in ALONE]
)
def test_refusal(source, environment, expected):
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        timeout=300,
    )
    assert done.returncode == 1
    assert expected in done.stderr


def test_the_plan_and_the_replica_apply_the_same_fields():
    assert session_config._SETTERS.keys() == APPLIED.keys()


def test_the_shipped_descriptors_are_those_of_the_installed_tensorflow():
    script = Path(__file__).parents[2] / "scripts" / "build_descriptors.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout
