"""The jobs of the pages about migration: both sides of each are what they are said to be."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from airflow_tf.cli.tfjob import convert
from airflow_tf.pipeline.build import load_dag

FOLDER = Path(__file__).parent / "examples" / "migration"
NAMES = ["bash", "spark", "tfjob", "tony"]


@pytest.mark.parametrize("name", NAMES)
def test_the_declaration_is_valid(name):
    assert load_dag(FOLDER / f"{name}.tf.yaml").dag_id == "churn"


def test_the_tfjob_becomes_what_is_shown():
    job = yaml.safe_load((FOLDER / "tfjob.yaml").read_text())
    assert convert(job).declaration == yaml.safe_load((FOLDER / "tfjob.tf.yaml").read_text())


def test_the_cluster_of_tony_is_the_declared_one():
    properties = {
        each.findtext("name"): each.findtext("value")
        for each in ET.parse(FOLDER / "tony.xml").getroot().iter("property")
    }
    roles = yaml.safe_load((FOLDER / "tony.tf.yaml").read_text())["train"]["roles"]
    assert {role: properties[f"tony.{role}.instances"] for role in roles} == {
        role: str(count) for role, count in roles.items()
    }


def test_the_dag_of_bash_operators_is_one():
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(FOLDER / "bash.py"), bundle_name="test")
    assert (bag.import_errors, list(bag.dags)) == ({}, ["churn"])


def test_the_program_for_spark_is_python():
    compile((FOLDER / "spark.py").read_text(), "spark.py", "exec")
