"""The parts of the benchmarks that start nothing large: DAGs, programs, counting, figures at tiny sizes."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

ROOT = Path(__file__).parents[2]


def bench(name: str) -> Any:
    """Import a benchmark: mypy knows its path, the tests know its name."""
    return importlib.import_module(name)


def dags_of(texts: dict[str, str]) -> dict[str, DAG]:
    found = {}
    for text in texts.values():
        names: dict[str, Any] = {}
        exec(text, names)
        found[names["dag"].dag_id] = names["dag"]
    return found


def test_both_sides_of_recovery_run_one_program_on_a_gang_that_knows_its_members(tmp_path: Path) -> None:
    recovery = bench("recovery")
    found = dags_of(recovery.make_dags(tmp_path))
    ours, theirs = found["ours"].get_task("train"), found["reference"].get_task("train")
    program = ours.partial_kwargs["entrypoint"]
    assert Path(program).is_file()
    assert theirs.partial_kwargs["bash_command"].endswith(program)
    configs = [json.loads(env["TF_CONFIG"]) for env in theirs.expand_input.value["env"]]
    assert [config["task"]["index"] for config in configs] == [0, 1, 2, 3]
    assert len({address for config in configs for address in config["cluster"]["worker"]}) == 4
    places = {theirs.expand_input.value["env"][0]["BENCH_MARKS"], ours.partial_kwargs["environment"]["BENCH_MARKS"]}
    assert places == {f"{tmp_path}/{{{{ run_id }}}}"}


def test_both_sides_of_logs_run_one_program_with_one_environment(tmp_path: Path) -> None:
    found = dags_of(bench("logs").make_dags(tmp_path))
    ours, theirs = found["ours"].get_task("train"), found["reference"].get_task("train")
    assert ours.partial_kwargs["environment"] == theirs.env
    assert theirs.bash_command.endswith(ours.partial_kwargs["entrypoint"])


def test_a_flood_is_counted_line_by_line_while_its_log_grows(tmp_path: Path) -> None:
    logs = bench("logs")
    variables = {"FLOOD_LINES": "300", "FLOOD_RATE": "3000", "FLOOD_MARK": str(tmp_path / "mark")}
    command = [sys.executable, ROOT / "benchmarks" / "programs" / "flood.py"]
    output = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout
    began, ended = map(float, (tmp_path / "mark").read_text().split())
    assert 0.05 < ended - began < time.time() - began
    lines = output.splitlines()
    log = tmp_path / "map_index=0" / "attempt=1.log"
    log.parent.mkdir()
    counter = logs.Counter(tmp_path)
    assert counter.look() == 0
    blocks = [json.dumps({"event": "\n".join(block)}) for block in (lines[:100], lines[100:300], lines[299:])]
    log.write_text(blocks[0] + "\n" + blocks[1][:500])
    assert counter.look() == 100
    log.write_text("\n".join(blocks[:2]) + "\n")
    assert (counter.look(), counter.repeated) == (300, 0)
    log.write_text("\n".join(blocks) + "\n")
    assert (counter.look(), counter.repeated) == (300, 1)


def test_steps_are_read_by_process_and_the_slowest_counts(tmp_path: Path) -> None:
    recovery = bench("recovery")
    (tmp_path / "checkpoints-0").mkdir()
    (tmp_path / "0-10").write_text("1 5.0\n2 6.0\n3 7.0\n")
    (tmp_path / "1-11").write_text("1 5.5\n2 6.5\n")
    (tmp_path / "2-12").write_text("")
    assert recovery.steps_of(tmp_path) == {"0-10": [(1, 5.0), (2, 6.0), (3, 7.0)], "1-11": [(1, 5.5), (2, 6.5)]}
    assert recovery.last_step(recovery.steps_of(tmp_path)) == 2


@pytest.mark.tensorflow
def test_the_start_from_a_warm_zygote_is_measured_beside_an_interpreter(
    tmp_path: Path, no_processes_left: None
) -> None:
    first, usable = bench("supervising").start_rows(tmp_path / "starts", starts=1)
    assert 0 < first.ours <= usable.ours
    assert 0 < first.reference < usable.reference


def test_a_supervisor_is_measured_beside_the_least_that_one_needs(tmp_path: Path, no_processes_left: None) -> None:
    supervising = bench("supervising")
    found = supervising.load_rows(tmp_path / "load", "idle", supervising.IDLE, 2, 0.5, "spawn")
    rows = {row.figure: row for row in found}
    assert rows["MB RSS"].ours > rows["MB of its own (USS)"].ours > 0
    assert rows["percent of a core"].ours >= 0
    assert all(row.reference is not None for row in found)


def test_what_outlives_a_benchmark_is_named_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    private = bench("private")
    monkeypatch.setattr(private, "LEFT_DEADLINE_SECONDS", 0.3)
    waits = ["sh", "-c", "echo runs; read line"]
    with pytest.raises(RuntimeError, match=r"left behind.*read line"), private.private_folder("test") as folder:
        process = subprocess.Popen(waits, env={"WHERE": str(folder)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # its environment cannot be read before it runs: the kernel sets it late in an exec
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not folder.exists()


def test_a_folder_of_a_benchmark_goes_with_it() -> None:
    with bench("private").private_folder("test") as folder:
        (folder / "file").touch()
    assert not folder.exists()


@pytest.mark.tensorflow
def test_the_events_benchmark_reads_what_it_wrote(tmp_path: Path) -> None:
    events, path = bench("events"), tmp_path / "events.out.tfevents.1.host"
    events.write_events(path, 0, 8)
    size = path.stat().st_size
    events.write_events(path, 8, 4)
    assert path.stat().st_size > size
    found = events.read(path)
    assert sorted(found) == sorted(events.SERIES)
    assert [step for step, _ in found["loss"]] == [0, 1, 2]
    assert found["norm"][1][1] == pytest.approx(1 / 8)


def test_memory_of_staging_is_measured_in_caller_and_mover(tmp_path: Path, no_processes_left: None) -> None:
    memory = bench("staging_memory")
    rows = memory.large_file(tmp_path, 1 << 20) + memory.many_files(tmp_path, 30)
    assert [(row.case, row.figure) for row in rows] == [
        (case, f"MB RSS of the {process}")
        for case in ("0.000976562 GiB file, local", "30 files")
        for process in ("caller", "mover")
    ]
    assert all(0 < row.ours < 200 for row in rows)
