from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.serialization.definitions.param import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from airflow_tf.operators.retry import FailureClassPolicy
from airflow_tf.pipeline.build import load_dag
from tests.pipeline.declarations import VALID, changed, with_lines, write

MINIMAL = "dag_id: x\ntrain: {entrypoint: train.py}\ncheckpoints: {aggregate: none}\n"
NO_EVALUATION = VALID.partition("evaluate:")[0] + "checkpoints: {publish: 'file:///models'}\n"


def downstream(dag):
    return {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks}


def serialized(dag):
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def test_builds_the_tasks_in_order(tmp_path):
    assert downstream(load_dag(write(tmp_path))) == {
        "stage.train": ["reserve_devices"],
        "stage.holdout": ["reserve_devices"],
        "reserve_devices": ["train"],
        "train": ["aggregate_checkpoints"],
        "aggregate_checkpoints": ["evaluate"],
        "evaluate": ["publish"],
        "publish": [],
    }


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        (MINIMAL, ["reserve_devices", "train"]),
        (
            NO_EVALUATION,
            ["stage.train", "stage.holdout", "reserve_devices", "train", "aggregate_checkpoints", "publish"],
        ),
    ],
)
def test_leaves_out_what_is_not_declared(tmp_path, text, tasks):
    assert [task.task_id for task in load_dag(write(tmp_path, text)).tasks] == tasks


def test_what_concerns_the_dag_reaches_it(tmp_path):
    keys = "start_date: 2026-03-01\ncatchup: true\nmax_active_runs: 2\nowner: ann\n"
    dag = load_dag(write(tmp_path, with_lines(keys)))
    assert dag.start_date.isoformat() == "2026-03-01T00:00:00+00:00"
    assert (dag.catchup, dag.max_active_runs) == (True, 2)
    assert {task.owner for task in dag.tasks} == {"ann"}


def test_tries_of_tasks_may_be_declared_but_the_training_has_its_own(tmp_path):
    dag = load_dag(write(tmp_path, with_lines("retries: 5\nretry_delay: 3m\n")))
    tasks = {task.task_id: (task.retries, task.retry_delay) for task in dag.tasks}
    assert tasks.pop("train") == (2, timedelta(seconds=90))
    assert set(tasks.values()) == {(5, timedelta(minutes=3))}
    assert {type(task.retry_policy) for task in dag.tasks} == {FailureClassPolicy}


def test_a_publication_starts_the_dag_that_is_scheduled_on_it(tmp_path):
    publishing = load_dag(write(tmp_path))
    text = changed('"@daily"', "[hdfs://namenode:8020/models/churn/]").replace("models/churn\n", "scores\n")
    waiting = load_dag(write(tmp_path, text, "scores.tf.yaml"))
    [outlet] = publishing.get_task("publish").outlets
    assert list(waiting.timetable.asset_condition.objects) == [outlet]
    serialized(waiting)


def test_a_person_is_asked_between_evaluation_and_publication(tmp_path):
    dag = load_dag(write(tmp_path, with_lines("approval: {timeout: 2d, users: [ann]}\n")))
    assert downstream(dag)["evaluate"] == ["approve"]
    assert downstream(dag)["approve"] == ["publish"]
    task = dag.get_task("approve")
    assert task.response_timeout == timedelta(days=2)
    assert task.assigned_users == [{"id": "ann", "name": "ann"}]
    assert task.subject == "Publish the model of churn, run {{ run_id }}?"


def test_who_is_asked_sees_what_was_measured(tmp_path):
    dag = load_dag(write(tmp_path, with_lines("approval: {}\n")))
    evaluation = {"candidates": {"average": {"mae": 1.5}}, "baselines": {"mean": {"mae": 9.0}}}
    ti = SimpleNamespace(xcom_pull=lambda task_ids: evaluation if task_ids == "evaluate" else None)
    body = dag.get_template_env().from_string(dag.get_task("approve").body).render(ti=ti)
    assert body.splitlines() == ["| candidate | mae |", "|---|---|", "| average | 1.5 |", "| mean | 9.0 |"]


def test_the_question_may_be_written_out(tmp_path):
    text = NO_EVALUATION + "approval: {subject: 'Publish {{ run_id }}?', body: 'See {{ params.epochs }} epochs.'}\n"
    task = load_dag(write(tmp_path, text)).get_task("approve")
    assert (task.subject, task.body) == ("Publish {{ run_id }}?", "See {{ params.epochs }} epochs.")
    assert load_dag(write(tmp_path, NO_EVALUATION + "approval: {}\n")).get_task("approve").body is None


DEVICES = """devices:
  count: 2
  max_utilization: "20%"
  names: ["*A100*"]
  uuids: ["{{ var.value.gpu }}"]
  share: 0.5
  per_host: 2
  priority: "{{ params.epochs }}"
  time_limit: 2h
"""


def test_what_is_asked_of_devices_reaches_the_sensor_the_training_and_the_evaluation(tmp_path):
    before, _, rest = changed("    gpu_options: {allow_growth: true}\n", "").partition("devices:")
    dag = load_dag(write(tmp_path, f"{before}{DEVICES}train:{rest.partition('train:')[2]}"))
    shared = {
        "max_utilization": "20%",
        "names": ["*A100*"],
        "uuids": ["{{ var.value.gpu }}"],
        "share": 0.5,
        "priority": "{{ params.epochs }}",
    }
    whole = shared | {"per_host": 2, "time_limit": "2h"}
    sensor, evaluate = dag.get_task("reserve_devices"), dag.get_task("evaluate")
    assert {name: getattr(sensor, name) for name in whole} == whole
    assert {name: dag.get_task("train").partial_kwargs[name] for name in whole} == whole
    assert {name: getattr(evaluate, name) for name in shared} == shared
    assert (evaluate.per_host, evaluate.time_limit) == (None, None)


def test_training_is_mapped_over_literal_replicas(tmp_path):
    train = load_dag(write(tmp_path)).get_task("train")
    assert train.expand_input.value == {"replica": [0, 1]}
    assert train.partial_kwargs["count"] == 2
    assert train.partial_kwargs["require_checkpoint"]
    assert train.partial_kwargs["entrypoint"] == str(tmp_path / "train.py")
    assert train.partial_kwargs["arguments"] == {"epochs": "{{ params.epochs }}", "rate": 0.001}
    assert train.partial_kwargs["inputs"] == {
        "train": {
            "source": "hdfs://namenode:8020/churn/{{ run_id }}/*.csv",
            "hdfs_conn_id": "cluster",
            "shard": "files",
            "digest": "{{ (ti.xcom_pull(task_ids='stage.train') or {}).get('digest', '') }}",
        },
        "holdout": {
            "source": "hdfs://namenode:8020/holdout/*.csv",
            "hdfs_conn_id": "cluster",
            "shard": None,
            "digest": "{{ (ti.xcom_pull(task_ids='stage.holdout') or {}).get('digest', '') }}",
        },
    }


def test_operators_get_what_was_declared(tmp_path):
    dag = load_dag(write(tmp_path))
    stage, reserve = dag.get_task("stage.holdout"), dag.get_task("reserve_devices")
    assert (stage.source, stage.input_name, stage.hdfs_conn_id) == (
        "hdfs://namenode:8020/holdout/*.csv",
        "holdout",
        "cluster",
    )
    assert (reserve.for_task, reserve.count, reserve.kind, reserve.timeout, reserve.mode) == (
        "train",
        2,
        "cpu",
        7200,
        "reschedule",
    )
    publish = dag.get_task("publish")
    assert (publish.destination, publish.metric, publish.mode, publish.evaluation_task, publish.hdfs_conn_id) == (
        "hdfs://namenode:8020/models/churn",
        "mae",
        "min",
        "evaluate",
        "cluster",
    )
    assert list(dag.get_task("evaluate").inputs) == ["holdout"]


def test_a_connection_of_an_input_or_of_publishing_goes_before_the_common_one(tmp_path):
    text = changed("shard: files", "hdfs_conn_id: other").replace("  publish:", "  hdfs_conn_id: third\n  publish:")
    dag = load_dag(write(tmp_path, text))
    assert dag.get_task("stage.train").hdfs_conn_id == "other"
    assert dag.get_task("stage.holdout").hdfs_conn_id == "cluster"
    assert dag.get_task("publish").hdfs_conn_id == "third"


def test_the_declaration_is_the_documentation_and_params_make_the_form(tmp_path):
    dag = load_dag(write(tmp_path))
    assert dag.doc_md == f"```yaml\n{VALID}```\n"
    assert dag.params.get_param("epochs").schema == {"type": "integer", "minimum": 1}
    assert dag.params["epochs"] == 3


def test_all_replicas_may_run_at_once(tmp_path):
    dag = load_dag(write(tmp_path, changed("count: 2", "count: 40")))
    assert dag.max_active_tasks == 40


def test_how_an_input_is_shared_and_that_its_job_has_finished_is_told_to_all_that_stage_it(tmp_path):
    dag = load_dag(write(tmp_path, changed("shard: files", "shard: lines, require_success: true")))
    stage = dag.get_task("stage.train")
    assert (stage.shard, stage.replicas, stage.require_success) == ("lines", 2, True)
    given = dag.get_task("train").partial_kwargs["inputs"]["train"]
    assert (given["shard"], given["require_success"]) == ("lines", True)


def test_an_input_is_shared_by_those_that_train(tmp_path):
    text = changed("count: 2", "count: 4").replace("aggregate: average", "aggregate: chief")
    gang = "  strategy: v1_cluster\n  roles: {worker: 2, ps: 1, evaluator: 1}\n  retry_delay"
    dag = load_dag(write(tmp_path, text.replace("  retry_delay", gang)))
    assert (dag.get_task("stage.train").replicas, dag.get_task("stage.holdout").replicas) == (2, 1)


def test_the_same_file_gives_the_same_serialized_dag(tmp_path):
    file = write(tmp_path, with_lines("tags: [b, a, c]\n"))
    first = serialized(load_dag(file))
    assert serialized(load_dag(file)) == first
    assert " object at 0x" not in first
    assert serialized(load_dag(write(tmp_path, with_lines("tags: [b, a, d]\n")))) != first


GANG = """dag_id: x
devices: {count: 4, kind: cpu}
train:
  entrypoint: train.py
  strategy: async
  roles: {worker: 1, ps: 1, chief: 1, evaluator: 1}
  evaluator_grace: "{{ 20 }}m"
  success: {at_least: 2}
  start_timeout: 2m
  progress_timeout: "{{ 10 }}m"
  memory_limit: 8GiB
checkpoints: {publish: "file:///models"}
"""


def test_a_gang_is_trained_by_its_roles_and_its_chiefs_checkpoint_is_published(tmp_path):
    dag = load_dag(write(tmp_path, GANG))
    given = dag.get_task("train").partial_kwargs
    assert given["strategy"] == "async"
    assert given["roles"] == {"worker": 1, "ps": 1, "chief": 1, "evaluator": 1}
    assert given["evaluator_grace"] == "{{ 20 }}m"
    assert given["success"] == {"at_least": 2}
    assert given["start_timeout"] == 120.0
    assert given["progress_timeout"] == "{{ 10 }}m"  # rendered when it runs
    assert given["memory_limit"] == "8GiB"
    aggregate = dag.get_task("aggregate_checkpoints")
    assert aggregate.method == "chief"
    assert aggregate.destination == "file:///models"  # nothing but a failure keeps the result from it
    assert aggregate.trigger_rule == "none_failed_min_one_success"  # a worker that is not required ends skipped
    assert serialized(dag) == serialized(load_dag(write(tmp_path, GANG)))


def test_a_check_and_the_number_of_shares_are_handed_to_the_staging_task(tmp_path):
    dag = load_dag(
        write(tmp_path, changed("shard: files", "shard: files, check: {format: csv, columns: [int32, string]}"))
    )
    train, holdout = dag.get_task("stage.train"), dag.get_task("stage.holdout")
    assert (train.check, train.replicas) == ({"format": "csv", "columns": ["int32", "string"]}, 2)
    assert (holdout.check, holdout.replicas) == (None, 1)


def test_checkpoints_section_reaches_the_operators(tmp_path):
    section = (
        "checkpoints:\n  aggregate: greedy_soup\n  not_finite: leave_out\n  initial_checkpoint: latest\n  fresh: true\n"
        "  publish: hdfs://namenode:8020/models/churn/\n  keep: {last: 3, younger_than: 1d}\n"
    )
    dag = load_dag(write(tmp_path, VALID.partition("checkpoints:")[0] + section))
    aggregate, publish = dag.get_task("aggregate_checkpoints"), dag.get_task("publish")
    assert (aggregate.method, aggregate.metric, aggregate.not_finite) == ("greedy_soup", "mae", "leave_out")
    assert aggregate.evaluate["entrypoint"] == "package.module:main"
    assert aggregate.destination is None  # the evaluation may choose another
    assert aggregate.evaluate["inputs"].keys() == {"holdout"}
    assert publish.keep == {"last": 3, "younger_than_seconds": 86400.0}
    assert [asset.uri for asset in publish.outlets] == ["hdfs://namenode:8020/models/churn"]
    train = dag.get_task("train").partial_kwargs
    assert train["initial_checkpoint"] == {
        "source": "hdfs://namenode:8020/models/churn/latest",
        "hdfs_conn_id": "cluster",
    }
    assert train["fresh"] is True


def test_an_export_comes_between_the_choice_and_the_publication(tmp_path):
    text = changed(
        "  aggregate: average\n", "  aggregate: average\n  export: {entrypoint: train.py, arguments: {a: 1}}\n"
    )
    dag = load_dag(write(tmp_path, text))
    export, publish = dag.get_task("export"), dag.get_task("publish")
    assert (export.upstream_task_ids, export.downstream_task_ids) == ({"evaluate"}, {"publish"})
    assert (export.entrypoint, export.arguments) == (str(tmp_path / "train.py"), {"a": 1})
    assert (export.evaluation_task, export.metric, export.mode) == ("evaluate", "mae", "min")
    assert publish.export_task == "export"


def test_checkpoints_are_copied_below_the_base_of_the_versions(tmp_path):
    text = changed("  aggregate: average\n", "  aggregate: average\n  upload_every: 10m\n")
    upload = load_dag(write(tmp_path, text)).get_task("train").partial_kwargs["upload"]
    base = "hdfs://namenode:8020/models/churn"
    assert upload == {"destination": base, "hdfs_conn_id": "cluster", "every": "10m"}


@pytest.mark.parametrize(
    ("given", "message"),
    [({"epochs": "many"}, "'many' is not of type 'integer'"), ({"epochs": 0}, "0 is less than the minimum of 1")],
)
def test_a_param_of_the_wrong_type_is_refused_when_a_run_is_triggered(tmp_path, given, message):
    """As the API and ``airflow dags trigger --conf`` do it: with what Airflow stores of the DAG."""
    stored = DagSerialization.from_dict(DagSerialization.to_dict(load_dag(write(tmp_path))))
    with pytest.raises(ParamValidationError, match=message):
        stored.params.deep_merge(given).validate()
    assert stored.params.deep_merge({"epochs": 5}).validate() == {"epochs": 5}


def test_a_bare_number_or_boolean_takes_only_its_kind_and_a_bare_text_anything(tmp_path):
    text = changed("  epochs: {type: integer, default: 3, minimum: 1}\n", "  epochs: 3\n  resume: true\n  note: ''\n")
    stored = DagSerialization.from_dict(DagSerialization.to_dict(load_dag(write(tmp_path, text))))
    for given in ({"epochs": "many"}, {"epochs": None}, {"epochs": True}, {"resume": "yes"}, {"resume": 1}):
        with pytest.raises(ParamValidationError, match="is not of type"):
            stored.params.deep_merge(given).validate()
    given = {"epochs": 0.5, "resume": False, "note": None}
    assert stored.params.deep_merge(given).validate() == given
