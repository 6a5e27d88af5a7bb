from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_tf.pipeline.declaration import load_declaration
from airflow_tf.pipeline.errors import InvalidDeclarationError
from tests.pipeline.declarations import VALID, changed, with_lines, write


def errors(tmp_path, text):
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(write(tmp_path, text))
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


def test_reads_a_valid_declaration(tmp_path):
    declaration = load_declaration(write(tmp_path)).declaration
    assert declaration.inputs["holdout"].uri == "hdfs://namenode:8020/holdout/*.csv"
    assert declaration.devices.timeout == timedelta(hours=2)
    assert declaration.train.entrypoint == str(tmp_path / "train.py")
    assert declaration.train.arguments == {"epochs": "{{ params.epochs }}", "rate": 0.001}
    assert declaration.evaluate
    assert declaration.evaluate.entrypoint == "package.module:main"


@pytest.mark.parametrize("text", [VALID.replace("\n", "\r\n"), "\ufeff" + VALID], ids=["CRLF", "BOM"])
def test_reads_files_of_other_editors(tmp_path, text):
    assert load_declaration(write(tmp_path, text)).declaration == load_declaration(write(tmp_path)).declaration


def test_an_input_may_have_several_sources(tmp_path):
    text = changed("hdfs://namenode:8020/holdout/*.csv", "[hdfs://nn:1/day=1, 'hdfs://nn:1/day={{ ds }}/*.csv']")
    uri = load_declaration(write(tmp_path, text)).declaration.inputs["holdout"].uri
    assert uri == "hdfs://nn:1/day=1,hdfs://nn:1/day={{ ds }}/*.csv"


def test_a_declaration_needs_a_name_and_a_program_only(tmp_path):
    declaration = load_declaration(write(tmp_path, "dag_id: x\ntrain: {entrypoint: train.py}\n")).declaration
    assert declaration.devices.count == 1
    assert declaration.inputs == {}


UNKNOWN_IN_TRAIN = (
    'churn.tf.yaml:17:3: train.sesion_config: unknown key. Did you mean "session_config"? Allowed here: api, '
    "arguments, code, deferrable, entrypoint, environment, evaluator_grace, execution_timeout, kill_grace_seconds, memory_limit, "
    "progress_timeout, python, restarts, retries, retry_delay, roles, session_config, start_method, start_timeout, "
    "strategy, success, working_directory."
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (changed("session_config:", "sesion_config:"), UNKNOWN_IN_TRAIN),
        (changed("min_free_memory", "min-free-memory"), 'devices.min-free-memory: unknown key. Did you mean "min_free_memory"?'),
        (with_lines("session_config: {}\n"), '28:1: session_config: unknown key. "session_config" belongs under "train".'),
        (changed("shard: files", "shards: files"), '7:65: inputs.train.shards: unknown key. Did you mean "shard"?'),
        (changed("shard: files", "shard: rows"), "7:65: inputs.train.shard: 'rows' is wrong: input should be 'files',"),
        (changed("shard: files", "shard: lines, check: {header: true}"), "7:65: inputs.train.shard: it cannot be lines: the check names a header. Write lines_with_header"),
        (changed("shard: files", "shard: lines_with_header, check: {header: false}"), "7:65: inputs.train.shard: it cannot be lines_with_header"),
        (changed("  retry_delay", "  strategy: async\n  roles: {chief: 1, worker: 1, ps: 1}\n  retry_delay").replace("count: 2", "count: 3").replace("average", "chief"), "7:65: inputs.train.shard: an input cannot be shared in an async gang: the workers read what the chief's program names"),
        (changed("  retry_delay", "  evaluator_grace: 5m\n  retry_delay"), "20:3: train.evaluator_grace: there is no evaluator. Declare one under 'roles', or remove this"),
        (changed("count: 2", "count: two"), "10:3: devices.count: 'two' is wrong: input should be a valid integer"),
        (changed("count: 2", "count: 2.0"), "devices.count: 2.0 is wrong: input should be a valid integer"),
        (changed("count: 2", "count: yes"), "devices.count: true is wrong: input should be a valid integer"),
        (changed("count: 2", "count: 0"), "devices.count: 0 is wrong: input should be greater than or equal to 1"),
        (changed("count: 2", "count: 1025"), "devices.count: 1025 is wrong: input should be less than or equal to 1024"),
        (changed("count: 2", 'count: "{{ params.n }}"'), "devices.count: a template is not allowed here: this key is read when"),
        (changed("dag_id: churn", 'dag_id: "{{ x }}"'), "1:1: dag_id: a template is not allowed here"),
        (changed("dag_id: churn", "dag_id: a b"), "1:1: dag_id: 'a b' cannot be a DAG id. It must match"),
        (changed("dag_id: churn\n", ""), "1:1: dag_id: missing. Add it."),
        (changed('"@daily"', '"@dayly"'), "2:1: schedule: '@dayly' is not a schedule"),
        (changed('"@daily"', '"61 * * * *"'), "schedule: '61 * * * *' is not a schedule: [61 * * * *] is not acceptable"),
        (changed('"@daily"', "86400"), "schedule: 86400 is not a schedule. Write a cron expression, a preset"),
        (changed("default: 3", "default: x"), "4:3: params.epochs: the param contradicts itself: 'x' is not of type 'integer'"),
        (changed("default: 3", "defualt: 3"), "params.epochs: unknown key 'defualt'"),
        (changed("type: integer", "type: int"), "params.epochs: the param contradicts itself"),
        (changed(", default: 3", ""), "4:3: params.epochs: it needs a default: a scheduled run has nobody to ask"),
        (changed("kind: cpu", "kind: gpuu"), "devices.kind: 'gpuu' is wrong: input should be 'auto', 'gpu', 'static' or 'cpu'. Did you mean \"gpu\"?"),
        (changed("1GiB", "1 parsec"), "devices.min_free_memory: '1 parsec' is not a size. Write it like 10GiB"),
        (changed("kind: cpu", "max_utilization: 0.3"), "devices.max_utilization: 0.3 is not a percentage. Give 0 to 100, like 20 or 20%."),
        (changed("kind: cpu", "names: '*A100*'"), "devices.names: '*A100*' is wrong: input should be a valid list"),
        (changed("kind: cpu", "uuids: []"), "devices.uuids: [] is wrong: list should have at least 1 item"),
        (changed("kind: cpu", "share: 1.5"), "devices.share: 1.5 is wrong: input should be less than or equal to 1"),
        (changed("kind: cpu", 'share: "{{ params.s }}"'), "devices.share: a template is not allowed here"),
        (changed("kind: cpu", "per_host: 0"), "devices.per_host: 0 is wrong: input should be greater than or equal to 1"),
        (changed("kind: cpu", "priority: high"), "devices.priority: 'high' is not a whole number"),
        (changed("kind: cpu", "time_limit: 2 moons"), "devices.time_limit: '2 moons' is not a duration"),
        (changed("kind: cpu", "share: 0.5"), "19:19: train.session_config.gpu_options.allow_growth: the TF2 API turns the replica's share of the device into a memory limit"),
        (changed("kind: cpu", "share: 0.5").replace("allow_growth: true", "per_process_gpu_memory_fraction: 0.6"), "per_process_gpu_memory_fraction: 0.6 is more than this replica's share of the device, 0.5"),
        (changed("2h", "2 moons"), "devices.timeout: '2 moons' is not a duration. Write it like 30, 90s, 5m or 2h."),
        (changed("2h", '"{{ x }}"'), "devices.timeout: a template is not allowed here"),
        (changed("entrypoint: train.py", "entrypoint: trian.py"), "15:3: train.entrypoint: no script 'trian.py': there is no file"),
        (changed("entrypoint: train.py", "entrypoint: ."), "train.entrypoint: no script '.'"),
        (changed("rate: 1e-3", "rate: [1]"), "16:46: train.arguments.rate: [1] is not text, a number, true or false"),
        (changed("rate: 1e-3", "rate: null"), "train.arguments.rate: None is not text"),
        (changed("rate: 1e-3", "--rate: 1"), "train.arguments.--rate: '--rate' cannot be the name of an argument"),
        (changed("params.epochs }}", "params.epochs"), "train.arguments.epochs: '{{ params.epochs': malformed template, line 1"),
        (changed("  retry_delay", "  environment: {TF_CONFIG: x}\n  retry_delay"), "20:17: train.environment.TF_CONFIG: this variable cannot be declared"),
        (changed("  retry_delay", "  environment: {AIRFLOW_TF_FENCE: x}\n  retry_delay"), "train.environment.AIRFLOW_TF_FENCE: this variable cannot"),
        (changed("  retry_delay", "  strategy: synk\n  retry_delay"), "train.strategy: 'synk' is wrong: input should be 'independent', 'sync', 'async', 'v1_cluster' or 'towers'. Did you mean"),
        (changed("  retry_delay", "  strategy: sync\n  retry_delay"), "checkpoints.aggregate: it cannot be average: the replicas of a sync gang train one model, and its chief saves it. Write chief, or leave it out."),
        (changed("average", "chief"), "26:3: checkpoints.aggregate: it cannot be chief: independent replicas have no chief. Choose average or best."),
        (changed("  retry_delay", "  strategy: towers\n  retry_delay"), "20:3: train.strategy: strategy towers is one process, but count is 2. Set devices.count to 1"),
        (changed("  retry_delay", "  roles: {worker: 2}\n  retry_delay"), "20:3: train.roles: strategy independent has no roles"),
        (changed("  retry_delay", "  strategy: v1_cluster\n  roles: {ps_hosts: 1, worker_hosts: 1}\n  retry_delay"), "train.roles: strategy v1_cluster has no role 'ps_hosts': it is one of: chief, worker, ps, evaluator. Did you mean 'ps'?"),
        (changed("  retry_delay", "  success: {at_least: 3}\n  retry_delay"), "20:3: train.success: {'at_least': 3} is no success policy for 2 replicas"),
        (changed("hdfs://namenode:8020/holdout/*.csv", "/holdout/*.csv"), "8:3: inputs.holdout.uri: '/holdout/*.csv' is not a storage URI: a scheme and an absolute path are needed"),
        (changed("hdfs://namenode:8020/holdout/*.csv", "s3://holdout/*.csv"), "8:3: inputs.holdout.uri: unknown scheme in 's3://holdout/*.csv'. Known are: file, hdfs, swebhdfs, viewfs, webhdfs."),
        (changed("hdfs://namenode:8020/holdout/*.csv", "[hdfs://namenode:8020/a, /b]"), "8:3: inputs.holdout.uri: '/b' is not a storage URI"),
        (changed("hdfs://namenode:8020/holdout/*.csv", "{uri: [hdfs://namenode:8020/a, 1]}"), "inputs.holdout.uri: this is no list of URIs. Write each like hdfs://namenode:8020/data/day=1."),
        (changed("hdfs://namenode:8020/holdout/*.csv", "{uri: []}"), "inputs.holdout.uri: this is no list of URIs."),
        (changed("hdfs://namenode:8020/holdout/*.csv", "{uri: [hdfs://a:1/x, hdfs://b:1/y]}"), "inputs.holdout.uri: hdfs://a:1/x and hdfs://b:1/y lie on different file systems: what is staged together comes from one. Declare an input for each."),
        (changed('"hdfs://namenode:8020/churn/', '"/churn/'), "7:11: inputs.train.uri: '/churn/x/*.csv' is not a storage URI"),
        (changed("hdfs://namenode:8020/models", "models"), "27:3: checkpoints.publish: 'models/churn' is not a storage URI"),
        (changed("  holdout:", "  hold-out:"), "inputs.hold-out: 'hold-out' cannot be the name of an input"),
        (changed("  holdout:", "  TRAIN:"), "6:1: inputs: 'train' and 'TRAIN' differ only in case"),
        (changed("[holdout]", "[houldout]"), "24:12: evaluate.inputs[0]: 'houldout' is not declared under 'inputs'"),
        (changed("aggregate: average", "aggregate: none"), "26:3: checkpoints.aggregate: none leaves no checkpoint for evaluate and checkpoints.publish. Choose another method"),
        (changed("aggregate: average", "aggregate: mean"), "checkpoints.aggregate: 'mean' is wrong: input should be 'average', 'best', 'latest'"),
        (changed("aggregate: average", "top: 2"), "26:3: checkpoints.top: average does not use it. Remove it, or choose top_k."),
        (changed("aggregate: average", "aggregate: top_k\n  top: 2"), "26:3: checkpoints.aggregate: top_k needs 'metric' and 'top'. Add both."),
        (changed("aggregate: average", "aggregate: top_k\n  metric: mae\n  top: 3"), "28:3: checkpoints.top: 3 is too many: there are 2 replicas. Give a number not above devices.count."),
        (changed("aggregate: average", "aggregate: ema\n  decay: 1.5"), "checkpoints.decay: 1.5 is wrong: input should be less than 1"),
        (changed("aggregate: average", "initial_checkpoint: newest"), "checkpoints.initial_checkpoint: 'newest' is not a storage URI"),
        (changed("aggregate: average", "keep: {}"), "checkpoints.keep: it keeps nothing. Give last, best, every or younger_than."),
        (changed("  publish: hdfs://namenode:8020/models/churn\n", "  keep: {last: 2}\n"), "27:3: checkpoints.keep: it is for what is published, and nothing is. Add 'publish', or remove this."),
        (changed('"@daily"', "[]"), "2:1: schedule: [] is not a schedule"),
        (changed('"@daily"', "[3]"), "2:1: schedule: [3] is no list of asset URIs"),
        (with_lines("start_date: 20260301\n"), "28:1: start_date: 20260301 is not a date"),
        (with_lines("start_date: soon\n"), "28:1: start_date: 'soon' is not a date"),
        (with_lines("catchup: true\n"), "28:1: catchup: it needs 'start_date' and 'schedule'"),
        (changed("  publish: hdfs://namenode:8020/models/churn\n", "approval: {}\n"), "27:1: approval: it is asked for before a publication, and nothing is published. Add 'checkpoints.publish'"),
        (with_lines("approval: {body: '{{ runid }}'}\n"), "28:12: approval.body: 'runid' is not defined. Did you mean \"run_id\"?"),
        (changed("  publish: hdfs://namenode:8020/models/churn\n", "  initial_checkpoint: latest\n"), "27:3: checkpoints.initial_checkpoint: nothing is published: the latest version is looked for below"),
        (changed("average", "best").replace("evaluate:\n  entrypoint: package.module:main\n  metric: mae\n  inputs: [holdout]\n", ""), "checkpoints.aggregate: best needs an 'evaluate' section"),
        (changed("models/churn", "models/{{ run_id }}"), "27:3: checkpoints.publish: run_id is not allowed here: the base must be the same"),
        (changed('"@daily"', "[hdfs://nn:8020/a]").replace("{{ run_id }}", "{{ ds }}"), "7:11: inputs.train.uri: 'ds' is not there in a run that assets start, which has no logical date. Use run_id or dag_run.run_after"),
        (changed('"@daily"', "{timetable: CronTriggerTimetable, expression: '@daily', assets: [hdfs://nn:8020/a]}").replace("{{ run_id }}", "{{ logical_date.year }}"), "7:11: inputs.train.uri: 'logical_date' is not there"),
        (with_lines("version: 2\n"), "28:1: version: 2 is no known version: this airflow_tf reads version 1 of the language. Write 1, or install"),
        (with_lines("version: '1'\n"), "28:1: version: '1' is no known version"),
        (with_lines("version: true\n"), "28:1: version: True is no known version"),
        (with_lines("tags: x\n"), "28:1: tags: 'x' is wrong: input should be a valid list"),
        (with_lines(f"tags: [{'a' * 101}]\n"), "aaa' is wrong: string should have at most 100 characters"),
        (changed("  holdout:", f"  {'h' * 81}:"), "hhh' cannot be the name of an input"),
        (with_lines("tags: [a, 1]\n"), "28:11: tags[1]: 1 is wrong: input should be a valid string"),
        (VALID.partition("checkpoints:")[0] + "checkpoints:\n", "25:1: checkpoints: null is not a mapping. Write keys with values below it."),
        (changed("{allow_growth: true}", "{per_process_gpu_memory_fraction: 1.5}"), "19:19: train.session_config.gpu_options.per_process_gpu_memory_fraction: 1.5 is more than the whole device"),
        (changed("allow_growth", "alow_growth"), '19:19: train.session_config.gpu_options.alow_growth: unknown field of GPUOptions. Did you mean "allow_growth"?'),
        (changed("allow_soft_placement: true", "allow_soft_placement: 3"), "18:5: train.session_config.allow_soft_placement: must be true or false, not 3"),
        (changed("allow_soft_placement: true", "ps: {device_count: {CPU: 0}}"), "18:25: train.session_config.ps.device_count.CPU: a program cannot run without"),
        (changed("allow_soft_placement", "allow_growth"), "train.session_config.allow_growth: unknown field of ConfigProto. It belongs under"),
        (changed("allow_soft_placement: true", 'allow_soft_placement: "{{ x"'), "train.session_config: '{{ x': malformed template"),
    ],
)  # fmt: skip
def test_each_mistake_has_one_error_with_its_position_and_remedy(tmp_path, text, expected):
    found = errors(tmp_path, text)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (changed("params.epochs", "parms.epochs"), "16:15: train.arguments.epochs: 'parms' is not defined. Did you mean \"params\"?"),
        (changed("params.epochs", "params.epoch"), "16:15: train.arguments.epochs: there is no param 'epoch'. Did you mean \"epochs\"?"),
        (changed("params.epochs", "params['epoch']"), "16:15: train.arguments.epochs: there is no param 'epoch'."),
        (changed("{{ run_id }}", "{{ runid }}"), "7:11: inputs.train.uri: 'runid' is not defined. Did you mean \"run_id\"?"),
        (changed("1GiB", '"{{ params.memory }}"'), "12:3: devices.min_free_memory: there is no param 'memory'. Declare it"),
    ],
)  # fmt: skip
def test_a_name_that_no_template_can_know_is_told_before_any_run(tmp_path, text, expected):
    found = errors(tmp_path, text)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    "template",
    ["{{ params.get('other', 3) }}", "{% for i in range(3) %}{{ i }}{% endfor %}", "{{ replica.index + inputs | length }}",
     "{{ macros.ds_add('2026-01-01', 1) }}", "{{ dag_run.conf['anything'] }}", "{{ params['epochs'] }}"],
)  # fmt: skip
def test_names_that_templates_know_are_left_alone(tmp_path, template):
    load_declaration(write(tmp_path, changed('"{{ params.epochs }}"', f'"{template}"')))


def test_keys_that_do_not_fit_are_told_beside_keys_that_are_wrong_for_themselves(tmp_path):
    text = changed("[holdout]", "[nope]").replace("package.module:main", "none.py")
    text = text.replace("aggregate: average", "aggregate: top_k").replace(
        "  retry_delay", "  success: {at_least: 5}\n  retry_delay"
    )
    assert [line.split(" ")[1] for line in errors(tmp_path, text)] == [
        "train.success:",
        "evaluate.entrypoint:",
        "evaluate.inputs[0]:",
        "checkpoints.aggregate:",
    ]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (changed("count: 2", "count: two").replace("average", "chief"), ["devices.count:"]),
        (changed("  holdout:", "  hold-out:"), ["inputs.hold-out:"]),
        (changed("dag_id: churn\n", "").replace("[holdout]", "[nope]"), ["dag_id:", "evaluate.inputs[0]:"]),
        (changed("epochs: {type: integer, default: 3, minimum: 1}", "epochs: {type: int}"), ["params.epochs:"]),
        (changed("train:\n  entrypoint: train.py", "trian:\n  entrypoint: train.py"), ["train:", "trian:"]),
    ],
)
def test_nothing_is_said_of_what_a_broken_key_leads_to(tmp_path, text, paths):
    assert [line.split(" ")[1] for line in errors(tmp_path, text)] == paths


def test_keys_that_do_not_fit_together_are_all_told_at_once(tmp_path):
    text = changed("average", "greedy_soup\n  top: 3\n  keep: {best: 1}").replace("[holdout]", "[one, two]")
    assert [line.split(" ")[1] for line in errors(tmp_path, text)] == [
        "evaluate.inputs[0]:",
        "evaluate.inputs[1]:",
        "checkpoints.top:",
        "checkpoints.top:",
    ]


def test_all_errors_of_a_file_are_reported_at_once_in_order(tmp_path):
    text = changed("count: 2", "count: two").replace("allow_growth", "alow_growth").replace("metric:", "metrik:")
    found = errors(tmp_path, text)
    assert [line.split(": ")[1] for line in found] == [
        "devices.count",
        "train.session_config.gpu_options.alow_growth",
        "evaluate.metric",
        "evaluate.metrik",
    ]


@pytest.mark.parametrize("value", ["'{{ params.epochs }}'", "[1, '{{ params.epochs }}']"])
def test_templates_in_a_session_config_wait_for_the_run(tmp_path, value):
    text = changed("allow_soft_placement: true", f"intra_op_parallelism_threads: {value}")
    if value.startswith("["):
        text = text.replace("intra_op_parallelism_threads", "device_filters").replace(
            "retry_delay", "api: v1\n  retry_delay"
        )
    assert load_declaration(write(tmp_path, text)).declaration.train.session_config


def test_published_versions_may_go_below_a_base_that_the_installation_names(tmp_path):
    text = changed("hdfs://namenode:8020/models/churn", "'{{ var.value.models }}/churn'")
    assert load_declaration(write(tmp_path, text)).declaration.checkpoints.publish == "{{ var.value.models }}/churn"
