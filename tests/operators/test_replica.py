"""What the operator decides before and beside a running replica."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_tf.core.devices import Device, DeviceRequest, Health, Member, Reading
from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.identity import GangKey, RunFolders
from airflow_tf.core.launch import Plan, ReplicaLaunch
from airflow_tf.core.ledger import Granted, Outcome, ReplicaRecord
from airflow_tf.core.manifest import StagedInput
from airflow_tf.core.session_config import ConfigContext, validate
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import CLEARED_REASON, AttemptState, ExitCause, MemberState
from airflow_tf.core.units import parse_bytes
from airflow_tf.hooks import staging
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.carrying import Generation
from airflow_tf.ledger import Ledger
from airflow_tf.operators import launching
from airflow_tf.operators import replica as module
from airflow_tf.operators.launching import Program, _check_cluster_variable, find_entrypoint
from airflow_tf.operators.train import TensorFlowTrainOperator
from airflow_tf.supervisor.acquire import this_host


class FakeView:
    """Records what a signal handler does to a view."""

    def __init__(self) -> None:
        self.stops: list[str] = []
        self.killed = self.detached = False

    def stop(self, reason: str) -> None:
        self.stops.append(reason)


@pytest.mark.parametrize(
    ("health_url", "reachable", "effect"),
    [
        ("", False, (True, False, False)),  # inside a command
        ("http://api", True, (False, True, False)),
        ("http://api", False, (False, False, True)),
    ],
)
def test_a_kill_is_asked_about_unless_the_api_server_is_away(
    monkeypatch: pytest.MonkeyPatch, health_url: str, reachable: bool, effect: tuple[bool, bool, bool]
) -> None:
    task = TensorFlowTrainOperator(task_id="train", replica=0, entrypoint="train.py")
    view: Any = FakeView()
    task._view, task._health_url = view, health_url
    monkeypatch.setattr(module, "is_reachable", lambda _url: reachable)
    task.on_kill()
    assert (bool(view.stops), view.killed, view.detached) == effect


def test_a_kill_before_the_replica_was_looked_at_does_nothing() -> None:
    TensorFlowTrainOperator(task_id="train", replica=0, entrypoint="train.py").on_kill()


@pytest.mark.parametrize(("mark", "generations"), [("", [1, 2]), ("cleared", [1])])
def test_the_try_after_a_clear_begins_anew_where_the_cleared_replica_was_still_ending(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, tmp_path: Path, mark: str, generations: list[int]
) -> None:
    task = TensorFlowTrainOperator(task_id="train", replica=0, entrypoint="train.py")
    run = TaskRun("dag", "run", "train", "ti", 2, 2, 2, 0.0, in_process=True)
    cleared = Outcome(AttemptState.STOPPED, ExitCause.MARKED, CLEARED_REASON)
    outcomes, seen = iter([cleared, Outcome(AttemptState.SUCCEEDED)]), []
    record = ReplicaRecord(1, 1, 1, None)

    def new_view(*arguments: Any) -> SimpleNamespace:
        seen.append(arguments[-1].generation)
        return SimpleNamespace(watch=lambda: next(outcomes), mark=mark)

    member = Member(1, 1, 0, (), MemberState.RESERVED)
    monkeypatch.setattr(task, "_new_view", new_view)
    monkeypatch.setattr(task, "_client", lambda *_: None)
    monkeypatch.setattr(task, "_enter", lambda *_: replace(record, generation=2))
    monkeypatch.setattr(module.DeviceClaim, "members", lambda *_: (member,))
    program: Any = SimpleNamespace(replicas=(0,))
    ledger: Any = None
    outcome = task._look_after(run, ledger, settings, run.gang("i"), program, record)
    assert seen == generations
    assert outcome.is_cleared == (mark == "cleared")


def test_the_count_is_that_of_the_mapped_instances() -> None:
    with DAG("counting", schedule=None) as dag:
        TensorFlowTrainOperator.partial(task_id="train", entrypoint="train.py").expand(replica=[0, 1, 2])
    task = TensorFlowTrainOperator(task_id="train", replica=0, entrypoint="train.py")
    assert task._count({"dag": dag}) == 3


def test_a_script_is_found_from_the_dag_file_and_a_function_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    assert find_entrypoint("code/train.py", tmp_path) == (str(tmp_path / "code" / "train.py"), str(tmp_path / "code"))
    assert find_entrypoint("package.module:main", tmp_path) == ("package.module:main", str(tmp_path))
    with pytest.raises(DeclarationError, match="does not exist"):
        find_entrypoint("missing.py", tmp_path)


@pytest.mark.parametrize(("in_process", "seconds"), [(True, 60), (False, 300 + 10 + 30 + 120)])
def test_an_orphan_of_a_command_has_a_minute_and_one_of_a_worker_until_the_next_try(
    in_process: bool, seconds: float
) -> None:
    run = TaskRun("dag", "run", "train", "ti", 1, 2, 2, 30.0, in_process=in_process)
    assert run.orphan_grace_seconds() == pytest.approx(seconds)


def test_one_task_instance_renders_the_fields_of_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = {}
    task = TensorFlowTrainOperator(
        task_id="train",
        replica=0,
        count=3,
        entrypoint="train.py",
        arguments={"part": "{{ replica.index }} of {{ replica.count }}"},
    )
    monkeypatch.setattr(
        task, "_variables", lambda _context, number: {"replica": {"index": number, "count": 3}, "inputs": {}}
    )
    task.render_template_fields(context)
    assert task.arguments == {"part": "0 of 3"}
    assert [task._rendered_for(context, number)["arguments"]["part"] for number in range(3)] == [
        "0 of 3",
        "1 of 3",
        "2 of 3",
    ]


def test_the_session_config_is_checked_for_the_devices_asked_for_and_the_share_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        Reading(Device("GPU-1", "gpu", "Tesla T4", 0, "GPU-1", 16 * 2**30), Health.FREE),
        Reading(Device("GPU-2", "gpu", "NVIDIA A100", 1, "GPU-2", 40 * 2**30), Health.FREE),
    ]
    monkeypatch.setattr(launching, "read_all", lambda _settings, _kind: found)
    fields: Any = {"names": ["*A100*"], "share": "0.5", "per_replica": "1"}
    task = TensorFlowTrainOperator(task_id="train", replica=0, entrypoint="train.py", **fields)
    settings: Any = None
    context = task._config_context(settings)
    assert (context.kind, context.devices, context.memory_bytes, context.share_percent) == ("gpu", 1, 40 * 2**30, 50)
    assert validate({}, context).config == {"gpu_options": {"per_process_gpu_memory_fraction": 0.5}}


def test_each_role_gets_its_own_session_config() -> None:
    task = TensorFlowTrainOperator(
        task_id="train", replica=0, count=3, entrypoint="train.py", strategy="v1_cluster", api="v1",
        roles={"chief": 1, "worker": 1, "ps": 1},
    )  # fmt: skip
    declared = {"device_count": {"CPU": "2"}, "device_filters": ["/job:ps"], "ps": {"device_count": {"GPU": 0}}}
    context: Any = {}
    found = [task._session_config(declared, ConfigContext(api="v1"), context, number).config for number in range(3)]
    assert [config["device_count"] for config in found] == [{"CPU": 2}, {"CPU": 2}, {"CPU": 2, "GPU": 0}]
    with pytest.raises(DeclarationError, match="jobs are chief, worker, ps"):
        task._session_config({"device_filters": ["/job:master"]}, ConfigContext(api="v1"), context, 0)


@pytest.mark.parametrize(("given", "seconds"), [({}, 600.0), ({"evaluator_grace": "20m"}, 1200.0)])
def test_an_evaluator_has_its_grace(given: dict[str, Any], seconds: float) -> None:
    task = TensorFlowTrainOperator(task_id="train", replica=0, count=1, entrypoint="/bin/true", **given)
    assert task._plan({}).evaluator_grace_seconds == seconds  # type: ignore[arg-type]


def test_limits_are_off_when_left_out_and_must_be_more_than_nothing() -> None:
    def limits(**given: Any) -> tuple[float | None, int | None]:
        task = TensorFlowTrainOperator(task_id="train", replica=0, count=1, entrypoint="/bin/true", **given)
        plan = task._plan({})  # type: ignore[arg-type]
        return plan.progress_timeout_seconds, launching._limit("memory_limit", task.memory_limit, parse_bytes)

    assert limits() == (None, None)
    assert limits(progress_timeout="10m", memory_limit="8GiB") == (600.0, 8 * 2**30)
    for given in ({"progress_timeout": 0}, {"memory_limit": "0"}):
        with pytest.raises(DeclarationError, match="greater than 0"):
            limits(**given)


@pytest.mark.parametrize(
    ("strategy", "declared", "says"),
    [
        ("sync", '{"cluster": {"worker": ["a:1"]}}', "strategy sync gives each replica its own"),
        ("independent", "worker", "is not JSON"),
        (
            "independent",
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}}',
            "task chief:0 is not in the cluster (worker: 2)",
        ),
    ],
)
def test_a_declared_cluster_is_refused_in_one_line_where_it_cannot_work(
    strategy: str, declared: str, says: str
) -> None:
    with pytest.raises(DeclarationError) as error:
        _check_cluster_variable(strategy, {"TF_CONFIG": declared})
    assert says in str(error.value)


def test_a_declared_cluster_that_works_is_left_alone() -> None:
    _check_cluster_variable(
        "independent", {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'}
    )
    _check_cluster_variable("sync", {"OTHER": "1"})
    own_names = '{"cluster": {"trainer": {"0": "a:1", "2": "b:1"}}, "task": {"type": "trainer", "index": 2}}'
    _check_cluster_variable("independent", {"TF_CONFIG": own_names, "AIRFLOW_TF_STRATEGY": "v1_cluster"})


def test_a_gang_looks_at_the_devices_and_stages_its_inputs_once(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, tmp_path: Path
) -> None:
    calls: list[str] = []

    def look(*_: object) -> list[Reading]:
        calls.append("look")
        return [Reading(Device("cpu-0", "cpu", "CPU", 0, "-1"), Health.FREE)]

    def stage(source: str, **_: object) -> StagedInput:
        calls.append(source)
        return StagedInput(source, f"/staged/{source}")

    monkeypatch.setattr(launching, "read_all", look)
    monkeypatch.setattr(staging, "ensure_staged", stage)
    monkeypatch.setattr(launching, "plan_shares", lambda _staged, count, _way: list(range(count)))
    monkeypatch.setattr(launching, "fill", lambda staged, share, folder: f"{staged.folder}/{share}/{folder.name}")
    monkeypatch.setattr(launching.LaunchingOperator, "_rendered_for", lambda *_: dict.fromkeys(launching._PER_REPLICA))
    inputs = {"all": {"source": "a"}, "part": {"source": "b", "shard": "files"}}
    task = TensorFlowTrainOperator(
        task_id="train",
        replica=1,
        count=3,
        strategy="sync",
        roles={"worker": 2, "evaluator": 1},
        entrypoint="train:main",
        inputs=inputs,
    )
    with DAG("once", schedule=None) as dag:
        dag.fileloc = str(tmp_path / "dag.py")
    context: Any = {"dag": dag, "ti": None}
    program = task._program(context, settings, RunFolders(settings.home, "once", "run"))
    assert calls == ["look", "a", "b"]
    assert [launch.inputs for launch in program.launches] == [
        {"all": "/staged/a", "part": "/staged/b/0/0-of-2"},
        {"all": "/staged/a", "part": "/staged/b/1/1-of-2"},
        {"all": "/staged/a", "part": "/staged/b"},  # an evaluator has no share
    ]
    assert [launch.require_checkpoint for launch in program.launches] == [True, False, False]


@pytest.mark.parametrize(("roles", "replica", "asked"), [({}, 1, 1), ({"worker": 2}, 1, 0)])
def test_a_copy_replaces_what_this_host_lacks_and_a_gang_has_only_its_first_replicas(
    monkeypatch: pytest.MonkeyPatch, roles: dict[str, int], replica: int, asked: int
) -> None:
    numbers: list[int] = []

    def copy(generation: Generation, *_: Any, **__: Any) -> dict[str, Any]:
        numbers.append(generation.replica)
        return {"copied_checkpoint": "/copy/ck-7", "copied_at_ns": 7}

    monkeypatch.setattr(launching, "rescued", copy)
    upload = {"destination": "file:///models", "every": "10m"}
    task = TensorFlowTrainOperator(task_id="train", replica=replica, entrypoint="train.py", upload=upload)
    launches = [ReplicaLaunch(n, 2, "train.py", "/", initial_checkpoint="/warm") for n in ((0, 1) if roles else (1,))]
    program = Program(Plan(roles=roles), launches[-1], tuple(launches))
    arguments: list[Any] = [program, None, None, None, None]
    found = task._with_copy(*arguments)
    assert numbers == [asked]
    assert {launch.copied_checkpoint for launch in found.launches} == {"/copy/ck-7"}
    assert found.own is found.launches[-1]
    task.fresh = True
    assert task._with_copy(*arguments) is program


@pytest.mark.parametrize("given", [{"session_config": "missing.yaml"}, {"arguments": {"x": "{{ nobody }}"}}])
def test_what_cannot_be_rendered_fails_at_once_and_keeps_no_device_reserved(
    given: dict[str, Any], settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for each in (launching, module):
        monkeypatch.setattr(each, "load_settings", lambda: settings)
    with DAG("broken", schedule=None, template_undefined=jinja2.StrictUndefined) as dag:
        task = TensorFlowTrainOperator(task_id="train", replica=0, entrypoint="train.py", kind="cpu", **given)
    dag.fileloc = str(tmp_path / "dag.py")
    ti = SimpleNamespace(
        dag_id="broken", run_id="run", task_id="train", id="1", try_number=1, max_tries=0, map_index=-1
    )
    key = GangKey(ledger.ledger_id, "broken", "run", "train")
    readings = [Reading(Device("cpu-0", "cpu", "CPU", 0, "-1"), Health.FREE)]
    assert isinstance(ledger.reserve(key, DeviceRequest("cpu"), [0], this_host(), readings), Granted)
    with pytest.raises(AirflowFailException):
        task.render_template_fields({"ti": ti, "task": task, "dag": dag})  # type: ignore[arg-type,typeddict-item]
    assert ledger.member(key, 0) is None
