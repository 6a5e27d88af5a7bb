"""All tasks of a run, on whichever host, train on what the staging task has copied."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from airflow_tf.core.errors import InputError
from airflow_tf.core.identity import RunFolders
from airflow_tf.core.manifest import StagedInput
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.staging import ensure_all_staged
from airflow_tf.pipeline.build import load_dag
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator
from tests.pipeline.declarations import write
from tests.storage.storage_helpers import task_context

Environment = pytest.MonkeyPatch


def stage(host: Path, source: Path, environment: Environment) -> str:
    """Run the staging task on a host; return the digest of its XCom."""
    environment.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(host))
    operator = HdfsToLocalOperator(task_id="stage", source=source.as_uri())
    return str(operator.execute(task_context())["digest"])


def train(host: Path, source: Path, digest: str, environment: Environment) -> StagedInput:
    """Do what a training task does first."""
    environment.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(host))
    settings, inputs = load_settings(), {"data": {"source": source.as_uri(), "digest": digest}}
    log = logging.getLogger("test")
    return ensure_all_staged(inputs, folders=RunFolders(settings.home, "d", "r"), settings=settings, log=log)["data"]


def test_a_host_that_finds_another_version_of_the_input_refuses_it(
    tmp_path: Path, source: Path, monkeypatch: Environment
) -> None:
    (source / "1.csv").write_text("1,2\n")
    digest = stage(tmp_path / "one", source, monkeypatch)
    assert train(tmp_path / "one", source, digest, monkeypatch).digest == digest
    assert train(tmp_path / "two", source, digest, monkeypatch).digest == digest
    (source / "1.csv").write_text("1,3\n")
    assert train(tmp_path / "two", source, digest, monkeypatch).digest == digest  # it is staged there already
    with pytest.raises(InputError, match=r"input data: .* is not what the staging task has copied: it changed since"):
        train(tmp_path / "three", source, digest, monkeypatch)
    assert train(tmp_path / "four", source, "", monkeypatch).digest != digest  # nothing to compare with


def test_a_host_with_an_older_version_stages_anew_after_the_staging_task_was_cleared(
    tmp_path: Path, source: Path, monkeypatch: Environment
) -> None:
    (source / "1.csv").write_text("1,2\n")
    digest = stage(tmp_path / "one", source, monkeypatch)
    train(tmp_path / "two", source, digest, monkeypatch)
    (source / "1.csv").write_text("1,3\n")
    cleared = stage(tmp_path / "one", source, monkeypatch)
    assert cleared != digest
    assert train(tmp_path / "two", source, cleared, monkeypatch).digest == cleared


@pytest.mark.parametrize(("xcom", "digest"), [({"digest": "abc"}, "abc"), (None, "")])
def test_a_declaration_hands_the_staging_tasks_digest_on(tmp_path: Path, xcom: Any, digest: str) -> None:
    given = load_dag(write(tmp_path)).get_task("train").partial_kwargs["inputs"]["train"]["digest"]
    answers = {"stage.train": xcom}
    ti = SimpleNamespace(xcom_pull=lambda task_ids: answers[task_ids])
    assert jinja2.Template(given, undefined=jinja2.StrictUndefined).render(ti=ti) == digest
