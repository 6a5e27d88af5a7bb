from __future__ import annotations

import pytest
import yaml

from airflow_tf.cli.tfjob import convert
from airflow_tf.core.errors import DeclarationError
from airflow_tf.pipeline.declaration import load_declaration

JOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: mnist, namespace: kubeflow}
spec:
  runPolicy: {cleanPodPolicy: None, backoffLimit: 3, activeDeadlineSeconds: 7200}
  tfReplicaSpecs:
    Chief: &replica
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: tensorflow
              image: gcr.io/mnist:1
              command: [python, /opt/mnist/train.py]
              args: ["--epochs=3", "--lr", "0.1", "out", "--verbose"]
              env:
                - {name: LEVEL, value: "2"}
                - {name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}
                - {name: TF_CONFIG, value: "{}"}
              resources: {limits: {nvidia.com/gpu: 2, memory: 4Gi, cpu: 4}}
              volumeMounts: [{name: data, mountPath: /data}]
          volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
    Worker:
      <<: *replica
      replicas: 3
"""


def job(text=JOB, **spec):
    found = yaml.safe_load(text)
    found["spec"] |= spec
    return found


def without(path, text=JOB):
    found = job(text)
    found["spec"]["tfReplicaSpecs"] = {
        name: value for name, value in found["spec"]["tfReplicaSpecs"].items() if name in path
    }
    return found


def test_what_has_a_counterpart_is_carried_over():
    assert convert(job()).declaration == {
        "dag_id": "mnist",
        "schedule": None,
        "devices": {"count": 4, "kind": "gpu", "per_replica": 2},
        "train": {
            "entrypoint": "train.py",
            "strategy": "sync",
            "roles": {"chief": 1, "worker": 3},
            "arguments": {"epochs": "3", "lr": "0.1"},
            "environment": {"LEVEL": "2"},
            "execution_timeout": 7200,
            "memory_limit": "4GiB",
            "restarts": 3,
        },
    }


def test_all_else_is_named_with_what_to_do():
    left = convert(job()).left
    assert set(left) == {
        "spec.tfReplicaSpecs.chief: /opt/mnist/train.py",
        "argument '--verbose'",
        "argument 'out'",
        "env SECRET",
        "env TF_CONFIG",
        "spec.successPolicy",
        "metadata.namespace",
        "spec.runPolicy.cleanPodPolicy",
        *(
            f"spec.tfReplicaSpecs.{role}.template.spec.{key}"
            for role in ("chief", "worker")
            for key in (
                "containers[0].image",
                "containers[0].resources.limits.cpu",
                "containers[0].volumeMounts",
                "volumes",
            )
        ),
    }
    assert all(left.values())


def test_the_text_is_a_valid_declaration_with_the_rest_as_comments(airflow_tf, tmp_path):
    source, file = tmp_path / "job.yaml", tmp_path / "mnist.tf.yaml"
    source.write_text(JOB)
    code, printed = airflow_tf("import", "tfjob", source)
    assert code == 0
    assert "# not imported: metadata.namespace: there is none\n" in printed
    file.write_text(printed)
    (tmp_path / "train.py").touch()
    assert load_declaration(file).declaration.train.roles == {"chief": 1, "worker": 3}


@pytest.mark.parametrize(
    ("roles", "strategy"),
    [
        ({"Worker": 2}, "sync"),
        ({"Chief": 1, "Worker": 2, "PS": 1}, "async"),
        ({"Worker": 2, "PS": 1}, "v1_cluster"),
        ({"Master": 1, "PS": 1}, "async"),
    ],
)
def test_the_roles_choose_the_strategy(roles, strategy):
    replica = {"template": {"spec": {"containers": [{"command": ["python", "t.py"]}]}}}
    found = convert(job(tfReplicaSpecs={name: replica | {"replicas": count} for name, count in roles.items()}))
    assert found.declaration["train"]["strategy"] == strategy
    assert found.declaration["devices"] == {"count": sum(roles.values()), "kind": "cpu"}


def test_one_replica_forms_no_gang():
    train = convert(without(["Chief"])).declaration["train"]
    assert "strategy" not in train
    assert "roles" not in train


def test_what_a_role_has_of_its_own_is_named():
    found = job()
    worker = yaml.safe_load(yaml.safe_dump(found["spec"]["tfReplicaSpecs"]["Worker"]))
    container = worker["template"]["spec"]["containers"][0]
    container["args"] = ["--epochs=9"]
    container["env"] = [{"name": "LEVEL", "value": "3"}]
    container["resources"]["limits"] = {"memory": "8Gi"}
    found["spec"]["tfReplicaSpecs"]["Worker"] = worker
    imported = convert(found)
    of_worker = {path for path in imported.left if ".worker" in path}
    assert {path.rpartition(".")[2] for path in of_worker} >= {"args", "env", "memory"}
    assert "spec.tfReplicaSpecs.worker: 0 x nvidia.com/gpu" in imported.left
    assert "memory_limit" not in imported.declaration["train"]


def test_restarts_without_a_limit_are_left_to_choose():
    found = job(runPolicy={})
    imported = convert(found)
    assert "restarts" not in imported.declaration["train"]
    assert "spec.tfReplicaSpecs.chief.restartPolicy" in imported.left


@pytest.mark.parametrize(
    ("kubernetes", "ours"), [("500M", "500MB"), ("2Ti", "2TiB"), ("1024", "1024B"), ("1.5G", "1.5GB")]
)
def test_quantities_count_as_kubernetes_does(kubernetes, ours):
    found = convert(job(JOB.replace("4Gi", kubernetes)))
    assert found.declaration["train"]["memory_limit"] == ours


@pytest.mark.parametrize("text", ["kind: Pod\n", JOB + "---\n" + JOB, "a: [\n", "- 1\n"])
def test_a_file_without_just_one_job_is_refused(airflow_tf, tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    code, message = airflow_tf("import", "tfjob", tmp_path / "job.yaml")
    assert code == 1
    assert message.startswith("airflow tf import tfjob: ")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("resources: {limits: {nvidia.com/gpu: 2, memory: 4Gi, cpu: 4}}", "resources:"),
        ("resources: {limits: {nvidia.com/gpu: 2, memory: 4Gi, cpu: 4}}", "resources: {limits: null}"),
        ("volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]", "volumes: [null]"),
        ("{name: data, mountPath: /data}", "null"),
        ('args: ["--epochs=3", "--lr", "0.1", "out", "--verbose"]', "args: --epochs=3"),
        ("metadata: {name: mnist, namespace: kubeflow}", "metadata:"),
        ('{name: LEVEL, value: "2"}', "LEVEL"),
        ("template:\n", "template: null\n      other:\n"),
    ],
)
def test_what_is_empty_or_of_another_kind_is_left_out(old, new):
    assert old in JOB
    declaration = convert(job(JOB.replace(old, new))).declaration
    assert declaration["devices"]["count"] == 4
    assert declaration["train"]["entrypoint"] == "train.py"


def test_variables_that_kubernetes_would_put_in_are_named():
    text = JOB.replace('"--epochs=3"', '"--epochs=$(EPOCHS)"').replace('value: "2"', 'value: "$(HOME)/x"')
    left = convert(job(text)).left
    assert {path for path in left if "$(" in path} == {"argument epochs: $(EPOCHS)", "env LEVEL: $(HOME)/x"}


@pytest.mark.parametrize(("old", "new"), [("replicas: 1", "replicas: one"), ("gpu: 2", "gpu: two")])
def test_a_number_that_is_none_is_refused(old, new):
    with pytest.raises(DeclarationError, match="is no whole number"):
        convert(job(JOB.replace(old, new)))


def test_a_job_of_zero_replicas_is_refused():
    text = JOB.replace("replicas: 1", "replicas: 0").replace("replicas: 3", "replicas: 0")
    with pytest.raises(DeclarationError, match="has no replicas"):
        convert(job(text))


def test_a_job_without_replicas_is_refused():
    with pytest.raises(DeclarationError, match="no tfReplicaSpecs"):
        convert(job(tfReplicaSpecs={}))
