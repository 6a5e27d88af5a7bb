"""The export of a SavedModel: what its load test finds, and what is said of a program that gives none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_tf.core.errors import CheckpointError
from airflow_tf.operators import local_program
from airflow_tf.operators.candidates import collect, describe
from airflow_tf.operators.export import CheckpointExportOperator, export
from airflow_tf.operators.local_program import LocalProgram
from tests.supervisor.harness import write_checkpoint

pytestmark = pytest.mark.usefixtures("no_processes_left")

MODELS = """
import json, sys, numpy as np, tensorflow as tf
from airflow_tf.core.errors import CheckpointError
from airflow_tf.runtime.load_test import check

class Model(tf.Module):
    def __init__(self):
        self.weights = tf.Variable([[2.0], [3.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="rows")])
    def plain(self, rows):
        return {"score": rows @ self.weights}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="rows")])
    def inverse(self, rows):
        return {"score": 1.0 / (rows @ self.weights)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="text")])
    def strict(self, text):
        with tf.control_dependencies([tf.debugging.assert_greater(tf.strings.length(text), 2)]):
            return {"length": tf.strings.length(text)}

model, found = Model(), {}
def test(name, signatures, sample):
    path = f"{sys.argv[1]}/{name}"
    tf.saved_model.save(model, path, signatures=signatures)
    try:
        found[name] = check(path, sample)
    except CheckpointError as error:
        found[name] = str(error)

test("plain", {"serving_default": model.plain, "b": model.strict}, {"text": np.array("long enough")})
test("none", None, {})
test("nan", {"serving_default": model.inverse}, {})
test("sampled", {"serving_default": model.inverse}, {"rows": np.ones([4, 2])})
test("strict", {"serving_default": model.strict}, {})
test("strange", {"serving_default": model.plain}, {"columns": np.ones(2)})
try:
    check(sys.argv[1], {})
except CheckpointError as error:
    found["missing"] = str(error)

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x = tf.compat.v1.placeholder(tf.float32, [None, 2])
    w = tf.compat.v1.get_variable("w", [2, 1], use_resource=False)
    session.run(w.initializer)
    tf.compat.v1.saved_model.simple_save(session, f"{sys.argv[1]}/v1", {"x": x}, {"y": x @ w})
found["v1"] = check(f"{sys.argv[1]}/v1", {})
print(json.dumps(found))
"""


BROKEN = """
import os
path = os.environ["AIRFLOW_TF_EXPORT_DIR"]
os.mkdir(path)
open(path + "/saved_model.pb", "w").close()
with open(os.environ["AIRFLOW_TF_EXPORT_SAMPLE"], "w") as file:
    file.write("text")
"""


@pytest.mark.tensorflow
def test_the_load_test_runs_every_signature_and_says_what_is_wrong(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODELS, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    score = {"dtype": "float32", "shape": [1, 1]}
    assert found["plain"]["serving_default"] == {
        "inputs": {"rows": {"dtype": "float32", "shape": [None, 2]}},
        "outputs": {"score": score},
    }
    assert found["plain"]["b"]["outputs"]["length"]["dtype"] == "int32"
    assert found["v1"]["serving_default"]["outputs"]["y"] == score
    assert found["sampled"]["serving_default"]["outputs"]["score"]["shape"] == [4, 1]
    for name, words in {
        "none": "has no signature",
        "nan": "output 'score' of signature 'serving_default' is NaN or infinite",
        "strict": "signature 'serving_default' cannot be run",
        "strange": "the sample has columns: no signature has such an input; known are: rows",
        "missing": "cannot be loaded in a fresh process",
    }.items():
        assert words in found[name]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; assert os.environ['AIRFLOW_TF_RESUME_FROM'] == '/run/model-5'", "saved no SavedModel"),
        ("raise ValueError('no such layer')", r"the export program ended with code 1: its output ends:[\s\S]*no such"),
        (BROKEN, r"the load test program ended with code 1[\s\S]*refused: "),
    ],
)
def test_a_program_that_exports_nothing_that_works_is_an_error(tmp_path: Path, program: str, message: str) -> None:
    (tmp_path / "export.py").write_text(program)
    with pytest.raises(CheckpointError, match=message):
        export(LocalProgram("export", "export.py", tmp_path), "/run/model-5", tmp_path / "task")


LEAVES_A_DAEMON = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("x" * 5_000_000, flush=True)
{then}
"""


@pytest.mark.parametrize(("then", "message"), [("time.sleep(600)", "took longer than 3 s"), ("sys.exit(3)", "code 3")])
def test_what_a_program_has_started_ends_with_it_and_its_output_is_bounded(
    tmp_path: Path, then: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_program, "_OUTPUT_BYTES", 1 << 20)
    monkeypatch.setattr(local_program, "_LOOK_SECONDS", 0.1)
    (tmp_path / "program.py").write_text(LEAVES_A_DAEMON.format(then=then))
    program = LocalProgram("evaluation", "program.py", tmp_path, timeout_seconds=3.0)
    with pytest.raises(CheckpointError, match=message) as error:
        program.run(tmp_path / "task", {})
    assert len(str(error.value)) < 100_000
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "task").iterdir())
    assert used < 2_000_000 or then.startswith("sys")  # one that ends at once is not looked at


def test_an_export_is_linked_and_described_with_its_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ck-1")
    made = tmp_path / "export" / "variables"
    made.mkdir(parents=True)
    (made.parent / "saved_model.pb").write_bytes(b"graph")
    (made / "variables.index").write_bytes(b"index")
    found = describe(collect(str(tmp_path / "ck-1"), tmp_path / "model", made.parent))
    assert found["saved_model/saved_model.pb"]["size"] == 5
    assert {"saved_model/variables/variables.index", "model.index"} <= found.keys()
    with pytest.raises(CheckpointError, match=r"is gone\. Clear the export task"):
        collect(str(tmp_path / "ck-1"), tmp_path / "other", tmp_path / "missing")


def test_the_trainings_environment_may_name_its_replica() -> None:
    operator = CheckpointExportOperator(
        task_id="export", entrypoint="export.py", environment={"SEED": "{{ replica.index }} of {{ replica.count }}"}
    )
    operator.render_template_fields({})
    assert operator.environment == {"SEED": "0 of 1"}
