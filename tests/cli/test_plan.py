from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from airflow_tf.hooks.settings import load_settings
from airflow_tf.storage.client import stage
from airflow_tf.storage.options import StorageOptions


@pytest.fixture
def churn(airflow_tf, tmp_path):
    """The files of ``airflow tf init churn``; returns a function that changes the declaration."""
    folder = tmp_path / "dags"
    folder.mkdir()
    airflow_tf("init", "churn", "--folder", folder)
    file = folder / "churn.tf.yaml"

    def change(*replacements):
        text = file.read_text().replace("kind: auto", "kind: cpu")
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
        return file

    return change


@pytest.fixture
def plan(airflow_tf):
    def run(file, *words):
        code, [row] = airflow_tf("plan", file, *words, "--output", "json")
        return code, row

    return run


def everything(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_it_tells_all_that_a_run_would_do(plan, churn, installation):
    code, row = plan(churn())
    assert (code, row["problems"], row["later"]) == (0, [], [])
    assert row["params"] == {"epochs": 5}
    assert [(task["task"], task["instances"], task["after"]) for task in row["tasks"]] == [
        ("stage.train", 1, []),
        ("reserve_devices", 1, ["stage.train"]),
        ("train", 2, ["reserve_devices"]),
        ("aggregate_checkpoints", 1, ["train"]),
        ("publish", 1, ["aggregate_checkpoints"]),
    ]
    [train] = row["inputs"]
    assert (train["files"], train["cached_bytes"], train["shard"]) == (2, 0, "files")
    assert train["bytes"] == sum(file.stat().st_size for file in (churn().parent / "churn" / "data").iterdir())
    assert row["devices"]["now"] == "available"
    assert row["devices"]["replicas"] == [["cpu-0"], ["cpu-1"]]
    assert row["train"]["arguments"] == {"epochs": "5"}
    assert row["train"]["replicas"][1]["session_config"] == {"allow_soft_placement": True}
    assert row["train"]["replicas"][1]["applied_by"]["allow_soft_placement"]
    assert row["destinations"]["version"].endswith("/churn/models/v=<UTC>-<hash>")
    assert row["destinations"]["newest"] is None
    assert row["destinations"]["run_folder"].startswith(f"{installation.home}/runs/churn--")


def test_nothing_is_written(plan, churn, installation, tmp_path):
    file, before = churn(), everything(tmp_path)
    assert plan(file)[0] == 0
    assert everything(tmp_path) == before


def test_people_read_the_same(airflow_tf, churn):
    code, text = airflow_tf("plan", churn())
    assert code == 0
    assert "train                  TensorFlowTrainOperator x 2, after reserve_devices" in text
    assert "/churn/data/*.csv: 2 files, " in text
    assert "asked: 1 device of kind cpu for each of 2 replicas\n" in text
    assert "replica 0: cpu-0; replica 1: cpu-1" in text
    assert 'session config of 0, 1: {"allow_soft_placement": true}' in text
    assert text.endswith("Problems\n  none\n")


def test_what_is_cached_is_told(plan, churn):
    file, settings = churn(), load_settings()
    uri = f"file://{file.parent}/churn/data/part-0.csv"
    staged = stage(
        uri, options=StorageOptions.from_uri(uri), target=settings.home / "x", cache_dir=settings.cache_dir,
        cache_bytes=settings.cache_bytes, on_progress=lambda _text: None,
    )  # fmt: skip
    assert plan(file)[1]["inputs"][0]["cached_bytes"] == staged.total_bytes > 0


def test_who_holds_the_devices_is_told_and_no_place_in_the_queue_is_taken(plan, churn, reserve, airflow_tf):
    reserve("other", 2)
    code, row = plan(churn())
    assert (code, row["devices"]["now"], row["devices"]["free"]) == (0, "waits", 0)
    assert len(row["devices"]["reasons"]) == 2
    assert "held by other / run / train" in row["devices"]["reasons"][0]
    assert airflow_tf("reservations", "--queue", "--output", "json") == (0, [])


def test_more_devices_than_the_host_has_are_a_problem(plan, churn):
    code, row = plan(churn(("count: 2", "count: 99"), (", shard: files", "")))
    assert (code, row["devices"]["now"]) == (1, "never")
    assert [problem["key"] for problem in row["problems"]] == ["devices"]
    assert "wants 99 devices of kind cpu" in row["problems"][0]["problem"]


def test_too_many_replicas_for_devices_and_for_files_are_told_together(plan, churn):
    code, row = plan(churn(("count: 2", "count: 99")))
    assert code == 1
    assert {problem["key"] for problem in row["problems"]} == {"inputs.train", "devices"}


def test_fewer_files_than_replicas_are_a_problem(plan, churn):
    file = churn()
    (file.parent / "churn" / "data" / "part-1.csv").unlink()
    code, row = plan(file)
    assert code == 1
    assert row["problems"][0]["problem"] == "1 files cannot be shared by 2 replicas"


def test_input_that_is_not_there_and_a_missing_connection_are_problems(plan, churn):
    file = churn(("/data/*.csv", "/none/*.csv"), ("checkpoints:\n", "checkpoints:\n  hdfs_conn_id: none\n"))
    file.write_text(file.read_text().replace("publish:", "publish: hdfs://namenode:8020/x #"))
    code, row = plan(file)
    assert code == 1
    assert {problem["key"] for problem in row["problems"]} == {"inputs.train", "checkpoints.publish"}
    assert all(problem["remedy"] for problem in row["problems"])


def test_a_variable_is_looked_up_and_missed(plan, churn, monkeypatch):
    file = churn(("file://", "{{ var.value.planned_root }}"))
    code, row = plan(file)
    assert code == 1
    assert row["problems"][0]["problem"] == "Variable planned_root not found"
    assert "airflow variables set planned_root VALUE" in row["problems"][0]["remedy"]
    monkeypatch.setenv("AIRFLOW_VAR_PLANNED_ROOT", "file://")
    code, row = plan(file)
    assert (code, row["inputs"][0]["files"]) == (0, 2)


def test_a_param_without_default_is_asked_for_and_taken_from_conf(plan, churn):
    file = churn(("default: 5, ", ""))
    code, row = plan(file)
    assert code == 1
    assert [problem["key"] for problem in row["problems"]] == ["params.epochs"]
    assert "--conf" in row["problems"][0]["remedy"]
    code, row = plan(file, "--conf", json.dumps({"epochs": 7}))
    assert (code, row["train"]["arguments"]) == (0, {"epochs": "7"})


def test_what_only_a_run_knows_is_listed(plan, churn):
    code, row = plan(churn(("/data/*.csv", "/{{ ds }}/*.csv")))
    assert code == 0
    [later] = row["later"]
    assert (later["key"], later["needs"]) == ("inputs.train.uri", ["ds"])
    assert row["inputs"][0]["files"] is None


def test_each_member_of_a_gang_has_its_task_and_the_config_of_its_role(plan, churn):
    code, row = plan(
        churn(
            ("entrypoint:", "strategy: v1_cluster\n  roles: {worker: 1, ps: 1}\n  entrypoint:"),
            ("allow_soft_placement: true", "allow_soft_placement: true\n    ps: {inter_op_parallelism_threads: 2}"),
            ("aggregate: average", "aggregate: chief"),
        )
    )
    assert (code, row["problems"]) == (0, [])
    worker, ps = row["train"]["replicas"]
    assert (worker["role"], ps["role"]) == ("worker 0", "ps 0")
    assert ps["tf_config"]["task"] == {"type": "ps", "index": 0}
    assert set(ps["tf_config"]["cluster"]) == {"worker", "ps"}
    assert ps["session_config"] == {"allow_soft_placement": True, "inter_op_parallelism_threads": 2}
    assert worker["session_config"] == {"allow_soft_placement": True}


@pytest.mark.parametrize(
    ("name", "text", "threads"),
    [
        ("session.yaml", "inter_op_parallelism_threads: '{{ replica.index + 1 }}'", [1, 2]),
        ("session.pbtxt", "{% if replica.index %}inter_op_parallelism_threads: 7{% endif %}", [None, 7]),
        ("session.j2", "{% if run_id %}inter_op_parallelism_threads: 7{% endif %}", [None, None]),
    ],
)
def test_a_file_with_the_session_config_is_rendered_as_far_as_it_is_known(plan, churn, name, text, threads):
    declaration = churn(
        ("session_config:  # TensorFlow's ConfigProto\n    allow_soft_placement: true", f"session_config: {name}")
    )
    (declaration.parent / name).write_text(text)
    code, row = plan(declaration)
    assert (code, row["problems"]) == (0, [])
    assert [each["session_config"].get("inter_op_parallelism_threads") for each in row["train"]["replicas"]] == threads
    assert [later["needs"] for later in row["later"]] == ([["run_id"]] if threads == [None, None] else [])


def test_an_interpreter_and_a_function_that_are_not_there_are_problems(plan, churn):
    code, row = plan(churn(("  arguments:", "  python: /no/such/python\n  arguments:")))
    assert (code, [problem["key"] for problem in row["problems"]]) == (1, ["train.python"])
    code, row = plan(churn(("  python: /no/such/python\n", ""), ("churn/train.py", "'churn_program:fit'")))
    assert (code, [problem["key"] for problem in row["problems"]]) == (1, ["train.entrypoint"])


def test_devices_that_only_a_run_knows_are_listed_and_the_rest_is_looked_at(plan, churn):
    code, row = plan(churn(("kind: cpu", "kind: cpu\n  min_free_memory: \"{{ dag_run.conf['memory'] }}\"")))
    assert (code, row["devices"]["now"]) == (0, "available")
    assert [(later["key"], later["needs"]) for later in row["later"]] == [("devices.min_free_memory", ["dag_run"])]


def test_copies_that_the_disk_will_not_hold_are_a_problem(plan, churn, monkeypatch):
    monkeypatch.setattr("airflow_tf.cli.planning.shutil.disk_usage", lambda _path: SimpleNamespace(free=10))
    code, row = plan(churn())
    assert (code, [problem["key"] for problem in row["problems"]]) == (1, ["inputs"])


def cached(file, name):
    """Stage a file of the churn example, and forget the run: only the cache has it."""
    uri, settings = f"file://{file}", load_settings()
    staged = stage(
        uri, options=StorageOptions.from_uri(uri), target=settings.home / name, cache_dir=settings.cache_dir,
        cache_bytes=settings.cache_bytes, on_progress=lambda _text: None,
    )  # fmt: skip
    shutil.rmtree(staged.folder)


def test_what_the_cache_may_remove_counts_as_free_but_not_what_the_run_needs_of_it(plan, churn, monkeypatch):
    file = churn()
    data, other = file.parent / "churn" / "data", file.parent / "other.csv"
    size = (data / "part-1.csv").stat().st_size
    monkeypatch.setattr("airflow_tf.cli.planning.shutil.disk_usage", lambda _path: SimpleNamespace(free=10))
    cached(data / "part-0.csv", "own")
    code, row = plan(file)  # part-0 is in the cache, which must not remove it to make room for part-1
    assert (code, [problem["key"] for problem in row["problems"]]) == (1, ["inputs"])
    other.write_bytes(b"x" * size)
    cached(other, "other")
    assert plan(file)[0] == 0


def test_a_folder_whose_job_has_not_finished_is_a_problem_where_that_is_asked(plan, churn):
    file = churn(("shard: files", "shard: files, require_success: true"))
    code, row = plan(file)
    assert (code, [problem["key"] for problem in row["problems"]]) == (1, ["inputs.train"])
    assert "_SUCCESS" in row["problems"][0]["problem"]
    (file.parent / "churn" / "data" / "_SUCCESS").touch()
    assert plan(file)[0] == 0


def test_beginning_with_the_latest_version_is_a_problem_where_none_is_published(plan, churn):
    latest = ("checkpoints:\n", "checkpoints:\n  initial_checkpoint: latest\n")
    code, row = plan(churn(latest))
    assert (code, [problem["key"] for problem in row["problems"]]) == (1, ["checkpoints.initial_checkpoint"])
    assert "no version below" in row["problems"][0]["problem"]
    code, row = plan(churn(("checkpoints:\n", "checkpoints:\n  allow_from_scratch: true\n")))
    assert (code, row["problems"]) == (0, [])


def test_variables_of_the_environment_are_looked_up(plan, churn, airflow_tf, monkeypatch):
    file = churn(("  arguments:", "  environment: {ROOT: '{{ var.value.planned_root }}'}\n  arguments:"))
    code, row = plan(file)
    assert (code, [problem["key"] for problem in row["problems"]]) == (1, ["train.environment.ROOT"])
    monkeypatch.setenv("AIRFLOW_VAR_PLANNED_ROOT", "/data")
    code, text = airflow_tf("plan", file)
    assert code == 0
    assert '  environment: {"ROOT": "/data"}\n' in text


def test_a_function_of_the_export_that_is_not_there_is_a_problem(plan, churn):
    code, row = plan(churn(("checkpoints:\n", "checkpoints:\n  export: {entrypoint: 'churn_program:export'}\n")))
    assert (code, [problem["key"] for problem in row["problems"]]) == (1, ["checkpoints.export.entrypoint"])


def test_an_evaluator_is_shown_apart_from_the_cluster(plan, churn):
    gang = ("entrypoint:", "strategy: sync\n  roles: {worker: 1, evaluator: 1}\n  entrypoint:")
    file = churn(gang, ("aggregate: average", "aggregate: chief"), (", shard: files", ""))
    code, row = plan(file)
    assert (code, row["problems"]) == (0, [])
    worker, evaluator = row["train"]["replicas"]
    assert set(worker["tf_config"]["cluster"]) == {"worker"}
    assert evaluator["role"] == "evaluator"
    assert evaluator["tf_config"]["task"] == {"type": "evaluator", "index": 0}
    assert set(evaluator["tf_config"]["cluster"]) == {"evaluator"}


@pytest.mark.parametrize("key", ["inputs.train", "checkpoints.publish"])
def test_a_connection_that_airflow_does_not_have_is_a_problem_of_its_key(plan, churn, key):
    file = churn()
    text = file.read_text().replace(", shard: files", ", shard: files, hdfs_conn_id: none_such")
    if key == "checkpoints.publish":
        text = file.read_text().replace("checkpoints:\n", "checkpoints:\n  hdfs_conn_id: none_such\n")
    file.write_text(text.replace("file://", "hdfs://namenode:8020"))
    code, row = plan(file)
    assert code == 1
    [problem] = [each for each in row["problems"] if each["key"] == key]
    assert "none_such" in problem["problem"]
    assert "airflow connections add" in problem["remedy"]


def test_a_connection_of_a_template_that_airflow_does_not_have_is_a_problem(plan, churn):
    code, row = plan(churn(("file://", "{{ conn.none_such.schema }}")))
    assert (code, row["problems"][0]["key"]) == (1, "inputs.train.uri")
    assert "none_such" in row["problems"][0]["problem"]


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_conf_that_is_no_object_is_refused(airflow_tf, churn, text):
    code, message = airflow_tf("plan", churn(), "--conf", text)
    assert code == 1
    assert message.startswith("airflow tf plan: --conf is not")


def test_a_broken_declaration_is_told_with_its_positions(airflow_tf, churn):
    code, message = airflow_tf("plan", churn(("train:\n  entry", "trian:\n  entry")))
    assert code == 1
    assert "churn.tf.yaml:" in message
    assert 'Did you mean "train"?' in message
