"""What ``airflow tf plan`` does: show what a run would do, before anything is done."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_tf.cli.output import Row, command, print_rows
from airflow_tf.cli.planning import Planner, space_problems
from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.settings import Settings
from airflow_tf.core.sweep import trial_name
from airflow_tf.core.units import format_bytes
from airflow_tf.hooks.settings import load_settings
from airflow_tf.pipeline.declaration import Loaded, load_declaration
from airflow_tf.pipeline.timetables import ASSETS, TIMETABLE


@command
def plan(args: Namespace) -> None:
    """Show the plan; exit code 1 if a run would fail."""
    loaded, settings, conf = load_declaration(Path(args.file)), load_settings(), _conf(args.conf)
    row = plan_of(loaded, settings, conf)
    if args.output in {"json", "yaml"}:
        print_rows([row], args.output)
    else:
        print("\n".join(_lines(row)))  # noqa: T201
    if row["problems"]:
        raise SystemExit(1)


def plan_of(loaded: Loaded, settings: Settings, given: Mapping[str, Any]) -> Row:
    """Return the plan of a declaration; that of each stage is in ``stages``, the problems of all are in ``problems``.

    :param given: values of params, as a run is triggered with.
    """
    whole = Planner(loaded, settings, given)
    row, measured = whole.plan(), whole.measured
    if loaded.stages:
        planners = {stage.name: Planner(stage.loaded, settings, given) for stage in loaded.stages}
        row["stages"] = {name: planner.plan() for name, planner in planners.items()}
        for stage in loaded.stages:
            row["stages"][stage.name]["starts_from"] = stage.starts_from
        row["problems"] = list(_problems_of_stages(row["stages"]))
        measured = {uri: found for planner in planners.values() for uri, found in planner.measured.items()}
    row["problems"] += space_problems(measured, settings.cache_dir)
    return row


def _problems_of_stages(stages: Mapping[str, Row]) -> Iterator[Row]:
    """Yield the problems of all stages with their keys in the file; those of params are the DAG's, told once."""
    shared: list[Row] = []
    for name, stage in stages.items():
        for problem in stage["problems"]:
            if not problem["key"].startswith("params."):
                yield problem | {"key": f"stages.{name}.{problem['key']}"}
            elif problem not in shared:
                shared.append(problem)
                yield problem


def _conf(text: str | None) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError as error:
        raise DeclarationError("--conf is not JSON", str(error), "Write it like '{\"epochs\": 5}'.") from error
    if not isinstance(given, dict):
        raise DeclarationError("--conf is not a JSON object", todo="Write it like '{\"epochs\": 5}'.")
    return given


def _lines(row: Row) -> Iterator[str]:
    yield f"DAG {row['dag_id']}, {_schedule(row['schedule'])}"
    if row["params"]:
        yield f"  params: {json.dumps(row['params'])}"
    width = max(len(task["task"]) for task in row["tasks"])
    for task in row["tasks"]:
        times = f" x {task['instances']}" if task["instances"] > 1 else ""
        after = f", after {', '.join(task['after'])}" if task["after"] else ""
        yield f"  {task['task']:{width}}  {task['operator']}{times}{after}"
    for name, stage in row.get("stages", {}).items():
        yield f"Stage {name}"
        if stage["starts_from"]:
            yield f"  begins with what stage {stage['starts_from']} has made"
        yield from _one_training(stage)
    if not row.get("stages"):
        yield from _one_training(row)
    yield "Problems"
    yield from (f"  {each['key']}: {each['problem']}. {each['remedy']}".rstrip() for each in row["problems"])
    if not row["problems"]:
        yield "  none"


def _schedule(when: str | list[str] | dict[str, Any] | None) -> str:
    if isinstance(when, dict):
        arguments = ", ".join(f"{key}={value}" for key, value in when.items() if key not in {TIMETABLE, ASSETS})
        assets = f" or after {', '.join(when[ASSETS])}" if ASSETS in when else ""
        return f"schedule {when[TIMETABLE]}{f' ({arguments})' if arguments else ''}{assets}"
    if isinstance(when, str):
        return f"schedule {when}"
    return f"after {', '.join(when)}" if when else "no schedule"


def _one_training(row: Row) -> Iterator[str]:
    if row["inputs"]:
        yield "Inputs"
        yield from map(_input, row["inputs"])
    yield "Devices"
    yield from _devices(row["devices"])
    yield "Training"
    yield from _training(row["train"])
    yield from (f"  trial {number}: {trial_name(trial)}" for number, trial in enumerate(row["trials"]))
    yield "Destinations"
    yield from _destinations(row["destinations"])
    if row["later"]:
        yield "Known when a run begins"
        yield from (f"  {each['key']}: {each['template']} (needs {', '.join(each['needs'])})" for each in row["later"])


def _input(row: Row) -> str:
    size = "not measured"
    if row["files"] is not None:
        size = f"{row['files']} files, {format_bytes(row['bytes'])}, {format_bytes(row['cached_bytes'])} of it cached"
    return f"  {row['name']}  {row['uri']}: {size}{'; shared by the replicas' if row['shard'] else ''}"


def _devices(row: Row) -> Iterator[str]:
    asked = row["asked"]
    each = "1 device" if asked["per_replica"] == 1 else f"{asked['per_replica']} devices"
    limits = {name: value for name, value in asked.items() if name not in {"kind", "per_replica", "replicas"} and value}
    if limits.get("share_percent") == 100:  # noqa: PLR2004  percent: a whole device
        del limits["share_percent"]
    yield f"  asked: {each} of kind {asked['kind']} for each of {asked['replicas']} replicas" + "".join(
        f", {name} {value}" for name, value in limits.items()
    )
    if row["now"] == "available":
        got = "; ".join(f"replica {number}: {' '.join(uuids)}" for number, uuids in enumerate(row["replicas"]))
        yield f"  now on {row['host']}: {got}"
    else:
        yield f"  now on {row['host']}: {'it would wait' if row['now'] == 'waits' else 'never'}"
        yield from (f"    {reason}" for reason in row["reasons"])


def _training(row: Row) -> Iterator[str]:
    options = "".join(f" --{key}={value}" for key, value in row["arguments"].items())
    yield f"  strategy {row['strategy']}: {row['python'] or 'python'} {row['entrypoint']}{options}"
    if row["environment"]:
        yield f"  environment: {json.dumps(row['environment'])}"
    for replica in row["replicas"]:
        if replica["tf_config"]:
            yield f"  replica {replica['replica']}  {replica['role']}: TF_CONFIG {json.dumps(replica['tf_config'])}"
    configs: dict[str, list[Row]] = {}
    for replica in row["replicas"]:
        parts = ("session_config", "applied_by", "warnings")
        configs.setdefault(json.dumps([replica[part] for part in parts], sort_keys=True), []).append(replica)
    for group in configs.values():
        numbers = ", ".join(str(replica["replica"]) for replica in group)
        yield f"  session config of {numbers}: {json.dumps(group[0]['session_config'])}"
        yield from (f"    {path}: {by}" for path, by in group[0]["applied_by"].items())
        yield from (f"    warning: {warning}" for warning in group[0]["warnings"])


def _destinations(row: Row) -> Iterator[str]:
    yield f"  run folder: {row['run_folder']}"
    if row["initial_checkpoint"]:
        yield f"  begins with: {row['initial_checkpoint']}"
    if row["publish"]:
        yield f"  published as: {row['version']}; newest now: {row['newest'] or 'none'}"
