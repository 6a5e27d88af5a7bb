from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.settings import Settings
from airflow_tf.hooks.hdfs import NATIVE_EXTRAS
from airflow_tf.hooks.settings import load_settings
from airflow_tf.provider_info import get_provider_info

PROJECT = Path(__file__).parents[2]
INFO = get_provider_info()


def test_fits_airflows_schema():
    schema = json.loads((resources.files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def test_airflow_sees_the_provider():
    assert "airflow-tf" in ProvidersManager().providers


@pytest.mark.parametrize(
    "name",
    [
        *(
            module
            for kind in ("operators", "sensors", "triggers", "hooks")
            for row in INFO[kind]
            for module in row["python-modules"]
        ),
        *(row["python-module"] for row in INFO["transfers"]),
    ],
)
def test_every_module_it_names_exists(name):
    importlib.import_module(name)


def test_the_decorator_it_names_exists():
    [decorator] = INFO["task-decorators"]
    module, _, name = decorator["class-name"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


def test_options_are_those_of_the_settings():
    assert set(INFO["config"]["airflow_tf"]["options"]) == {field.name for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize(
    "option", INFO["config"]["airflow_tf"]["options"].values(), ids=lambda option: option["description"][:20]
)
def test_every_option_is_described(option):
    assert option["description"]
    assert option["version_added"]
    assert option["type"] in {"string", "integer", "float", "boolean"}
    assert option["default"] is None or isinstance(option["default"], str)


def test_the_defaults_can_be_read(monkeypatch, airflow_home):
    monkeypatch.delenv("AIRFLOW__AIRFLOW_TF__LOCK_DIR")
    monkeypatch.delenv("AIRFLOW__AIRFLOW_TF__CPU_SLOTS")
    settings = load_settings()
    assert settings.home == airflow_home / "airflow_tf"
    assert settings.ledger_url == f"sqlite:///{airflow_home}/airflow_tf/ledger.db"
    assert settings.lock_dir == Path("/run/lock/airflow_tf")
    assert settings.cpu_slots == os.cpu_count()
    assert settings.cache_bytes == 100 * 2**30
    assert settings.reservation_seconds == 300
    assert settings.output_bytes == 2**30
    assert settings.own_scope == "auto"


@pytest.mark.parametrize(
    ("name", "text"), [("OUTPUT_BYTES", "10KiB"), ("OWN_SCOPE", "on"), ("CPU_SLOTS", "abc"), ("CPU_SLOTS", "0")]
)
def test_an_option_that_cannot_be_obeyed_is_refused(monkeypatch, name, text):
    monkeypatch.setenv(f"AIRFLOW__AIRFLOW_TF__{name}", text)
    with pytest.raises(DeclarationError, match=name.lower()):
        load_settings()


def test_the_connection_form_has_its_fields():
    manager = ProvidersManager()
    hook = manager.hooks["hdfs_native"]
    assert hook
    assert hook.hook_class_name == "airflow_tf.hooks.hdfs.HdfsHook"
    assert "schema" in manager.field_behaviours["hdfs_native"]["hidden_fields"]
    assert set(INFO["connection-types"][0]["conn-fields"]) == set(NATIVE_EXTRAS)
    for field in NATIVE_EXTRAS:
        assert f"extra__hdfs_native__{field}" in manager.connection_form_widgets


PRINT_PLUGINS = """
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
print([str(plugin.source) for plugin in plugins if plugin.name == "airflow_tf"], errors)
"""

WITHOUT_ENTRY_POINT = """
import importlib.metadata
importlib.metadata.entry_points = lambda group: importlib.metadata.EntryPoints()
from airflow import plugins_manager
plugins_manager._load_entrypoint_plugins = lambda: ([], {})
"""


def plugins(folder, program):
    environment = os.environ | {"AIRFLOW__CORE__PLUGINS_FOLDER": str(folder)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_an_installed_package_registers_once_though_the_plugins_folder_has_the_file():
    found = plugins(PROJECT / "plugins", PRINT_PLUGINS)
    assert found.startswith('["airflow-tf==')
    assert found.count("airflow_tf.plugin") == 1
    assert found.endswith("] {}")


def test_the_plugins_folder_registers_a_package_that_is_not_installed(tmp_path):
    for name in ("airflow_tf_plugin.py", ".airflowignore"):
        shutil.copy(PROJECT / "plugins" / name, tmp_path)
    (tmp_path / "airflow_tf").symlink_to(PROJECT / "airflow_tf")
    assert plugins(tmp_path, WITHOUT_ENTRY_POINT + PRINT_PLUGINS) == "['$PLUGINS_FOLDER/airflow_tf_plugin.py'] {}"


def test_the_ledger_s_url_may_come_from_a_command_and_is_never_shown(monkeypatch):
    url = "postgresql+psycopg://user:s3cret@host/airflow_tf"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__LEDGER_URL_CMD", f"echo {url}")
    settings = load_settings()
    assert settings.ledger_url == url
    assert "s3cret" not in repr(settings)
