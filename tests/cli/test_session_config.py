from __future__ import annotations

import json

import pytest

FILES = {
    "a.pbtxt": 'allow_soft_placement: true gpu_options { allow_growth: true visible_device_list: "0" } device_count { key: "CPU" value: 4 }',
    "a.json": '{"allowSoftPlacement": true, "gpuOptions": {"allowGrowth": "True", "visible_device_list": 0}, "device_count": {"CPU": "4"}}',
    "a.yaml": "allow_soft_placement: true\ngpu_options: {allow_growth: true, visible_device_list: '{{ replica.index }}'}\ndevice_count: {CPU: 4}\n",
    "a.yaml.j2": "allow_soft_placement: true\ngpu_options:\n{% if replica.count %}  allow_growth: true\n  visible_device_list: {{ replica.index }}\n{% endif %}device_count: {CPU: 4}\n",
}


@pytest.mark.parametrize("name", FILES)
def test_every_form_of_a_config_is_normalised_alike(airflow_tf, tmp_path, name):
    (tmp_path / name).write_text(FILES[name])
    code, (row,) = airflow_tf("session-config", tmp_path / name, "--output", "json")
    assert (code, row["valid"], row["errors"], row["file"]) == (0, True, [], str(tmp_path / name))
    assert row["normalised"] == {
        "allow_soft_placement": True,
        "gpu_options": {"allow_growth": True, "visible_device_list": "0"},
        "device_count": {"CPU": 4},
    }
    assert row["fields"]["allow_soft_placement"] == {
        "v1": "ConfigProto of every session",
        "tf2": "tf.config.set_soft_device_placement",
        "server": "default config of tf.distribute.Server",
    }
    assert set(row["fields"]["gpu_options.visible_device_list"]) == {"v1", "tf2", "server"}


@pytest.mark.parametrize(
    ("name", "text", "path", "said"),
    [
        ("b.pbtxt", "per_process_gpu_memory_fraction: 0.5", "session_config.per_process_gpu_memory_fraction", "session_config.gpu_options"),
        ("b.pbtxt", "gpu_options { experimental { virtual_devices { memory_limit: 1 } } }",
         "session_config.gpu_options.experimental.virtual_devices.memory_limit", "memory_limit_mb"),
        ("b.pbtxt", "intra_op_parallelism_threads: 'a'", "session_config", "line 1"),
        ("b.yaml", "gpu_options: {per_process_gpu_memory_fraction: 1.5}", "session_config.gpu_options.per_process_gpu_memory_fraction", "unified"),
        ("b.yaml", "graph_options: {optimizer_options: {global_jit_level: OFF}}",
         "session_config.graph_options.optimizer_options.global_jit_level", '"OFF"'),
        ("b.yaml", "a: 1\na: 2", "session_config", "given twice"),
        ("b.json", "8", "session_config", "mapping"),
        ("b.yaml", "{% if replica.nothing %}a: 1{% endif %}", "b.yaml", "nothing"),
        ("missing.yaml", None, "missing.yaml", "No such file"),
    ],
)  # fmt: skip
def test_what_is_wrong_has_path_reason_and_remedy(airflow_tf, tmp_path, name, text, path, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    code, (row,) = airflow_tf("session-config", tmp_path / name, "--output", "json")
    assert (code, row["valid"]) == (1, False)
    error = row["errors"][0]
    assert error["path"].endswith(path)
    assert error["remedy"]
    assert said in json.dumps(error).replace("\\", "")


def test_a_field_that_one_api_refuses_says_why_there(airflow_tf, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "gpu_options: {allow_growth: true, per_process_gpu_memory_fraction: 0.5}\ninter_op_parallelism_threads: -1\n"
        "rpc_options: {compression_level: '{{ params.level }}', num_channels_per_target: 2}\n"
    )
    code, (row,) = airflow_tf("session-config", tmp_path / "c.yaml", "--output", "json")
    assert code == 0
    fields = row["fields"]
    assert fields["gpu_options.allow_growth"]["tf2"].startswith("refused: the TF2 API turns the fraction")
    assert fields["inter_op_parallelism_threads"]["server"].startswith("refused: -1: a negative number makes")
    assert fields["rpc_options.num_channels_per_target"]["tf2"].startswith("refused: the public TF2 API cannot set it")
    assert any("compression_level" in warning["path"] for warning in row["warnings"])
    code, text = airflow_tf("session-config", tmp_path / "c.yaml")
    assert "tf2    refused: the TF2 API turns the fraction" in text


def test_the_part_of_a_role_is_judged_under_its_name(airflow_tf, tmp_path):
    (tmp_path / "d.yaml").write_text("allow_soft_placement: true\nps: {device_count: {GPU: 0, CPU: 0}}\n")
    code, (row,) = airflow_tf("session-config", tmp_path / "d.yaml", "--output", "json")
    assert (code, [error["path"] for error in row["errors"]]) == (1, ["session_config.ps.device_count.CPU"])
    assert row["normalised"] == {"allow_soft_placement": True, "ps": {"device_count": {"GPU": 0, "CPU": 0}}}
    assert "ps.device_count.GPU" in row["fields"]


def test_a_file_of_an_unknown_form_is_refused_with_the_known_ones(airflow_tf, tmp_path):
    (tmp_path / "config.txt").write_text("allow_soft_placement: true\n")
    code, [row] = airflow_tf("session-config", tmp_path / "config.txt", "--output", "json")
    assert code == 1
    [error] = row["errors"]
    assert error["reason"] == "its ending .txt names no known form"
    assert ".pbtxt" in error["remedy"]


def test_the_table_shows_the_normal_form(airflow_tf, tmp_path):
    (tmp_path / "a.pbtxt").write_text("allow_soft_placement: true intra_op_parallelism_threads: 2")
    code, text = airflow_tf("session-config", tmp_path / "a.pbtxt")
    assert code == 0
    assert 'normalised: {"allow_soft_placement": true, "intra_op_parallelism_threads": 2}' in text
