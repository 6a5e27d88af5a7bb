"""A replica: build its process state anew, apply the session config, run the user's program as if it were alone."""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import os
import random
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from airflow_tf.core.cluster import STRATEGY_VARIABLE
from airflow_tf.core.errors import AirflowTfError, DeclarationError
from airflow_tf.core.launch import EXIT_REFUSED, STACK_SIGNAL, ReplicaLaunch
from airflow_tf.runtime.process import PARENT_VARIABLE, die_with_parent, stamp_environment

_OUTPUT = 2
"""The descriptor itself: a program may replace ``sys.stderr``."""


def enter_forked(launch: ReplicaLaunch, parent: int) -> None:
    """Turn a fresh fork of the zygote into the replica's own process: session, environment, output, signals."""
    die_with_parent(parent)
    os.setsid()
    stamp_environment(launch.token)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    output = os.open(Path(launch.folder) / "output.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(launch.variables())
    _raise_oom_score()


def main() -> None:
    """Entry of a spawned replica: its environment, session and output were set by the supervisor."""
    die_with_parent(int(os.environ.pop(PARENT_VARIABLE)))
    _raise_oom_score()
    run(ReplicaLaunch.read(Path(sys.argv[1])))


def run(launch: ReplicaLaunch) -> None:
    """Apply the session config and run the program; end with ``EXIT_REFUSED`` where the launch cannot be carried out.

    Returning lets the interpreter end as after ``python train.py``: threads joined, atexit handlers run.
    """
    _show_stacks_when_asked()
    _enter_folder(launch)
    random.seed(launch.seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(launch.seed % 2**32)
    try:
        _enter_cgroup(launch.cgroup)
        _prepare(launch)
        _check_entrypoint(launch)
    except AirflowTfError as error:
        _refuse(launch, str(error))
    try:
        _run_program(launch)
    except Exception as error:
        importlib.import_module("airflow_tf.runtime.missing_device").explain(error)
        raise


def _enter_folder(launch: ReplicaLaunch) -> None:
    os.chdir(launch.folder)
    try:
        os.chdir(launch.working_directory or launch.folder)
    except OSError as error:
        _refuse(launch, f"train.working_directory {launch.working_directory} cannot be entered: {error.strerror}")


def run_forked(launch: ReplicaLaunch) -> NoReturn:
    """Run the program in a fork of the zygote and end the process as :mod:`multiprocessing` ends its forks.

    Threads are joined, exit handlers run, output is flushed; only the teardown of the interpreter is left out, which
    would visit (and copy) all of TensorFlow's objects to free memory that the kernel frees anyway.
    """
    code = 0
    try:
        run(launch)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:  # noqa: BLE001 (the program's own error, shown as Python shows it)
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 (as multiprocessing.process does)
    atexit._run_exitfuncs()  # noqa: SLF001 (as multiprocessing.popen_fork does)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(error: SystemExit) -> int:
    """Return the exit code of ``sys.exit(…)``: None is 0, text is printed and means 1."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _enter_cgroup(folder: str) -> None:
    """Enter the cgroup that limits this process and what it starts."""
    if folder:
        try:
            Path(folder, "cgroup.procs").write_text("0")
        except OSError as error:
            raise DeclarationError("train.memory_limit cannot be enforced", f"{folder}: {error.strerror}") from error


def _prepare(launch: ReplicaLaunch) -> None:
    """Make TensorFlow what the declaration says, before the program can touch a device."""
    if launch.session_config:
        _apply_session_config(launch)
    if os.environ.get(STRATEGY_VARIABLE) == "v1_cluster":
        importlib.import_module("airflow_tf.runtime.strategies.v1_cluster").prepare()
    if launch.api == "v1":
        importlib.import_module("airflow_tf.runtime.v1").install()


def _apply_session_config(launch: ReplicaLaunch) -> None:
    """Apply the session config; record what was asked and applied."""
    importlib.import_module("tensorflow")
    session_config = importlib.import_module("airflow_tf.runtime.session_config")
    report = session_config.apply(launch.session_config, api=launch.api, memory_bytes=launch.memory_bytes)
    (Path(launch.folder) / "session_config.json").write_text(json.dumps(report, indent=1, default=str))
    if launch.session_config.get("log_device_placement"):
        partitions = importlib.import_module("airflow_tf.runtime.partitions")
        partitions.record(Path(launch.folder), api=launch.api, has_gpu=launch.has_gpu)
        if launch.has_gpu:
            importlib.import_module("airflow_tf.runtime.kernels").record(Path(launch.folder))


def _check_entrypoint(launch: ReplicaLaunch) -> None:
    if is_script(launch.entrypoint) and not Path(launch.entrypoint).is_file():
        raise DeclarationError(
            f"entrypoint {launch.entrypoint} does not exist on this host",
            todo="Deploy the DAG folder to every host that trains, or correct train.entrypoint.",
        )


def is_script(entrypoint: str) -> bool:
    """Tell a script path from ``module:function``."""
    return entrypoint.endswith(".py") or ":" not in entrypoint


def _run_program(launch: ReplicaLaunch) -> None:
    folders = [launch.code_folder]
    if is_script(launch.entrypoint):
        folders.append(str(Path(launch.entrypoint).parent))
    sys.path[:0] = dict.fromkeys(folders)
    if is_script(launch.entrypoint):
        sys.argv = [launch.entrypoint, *(f"--{key}={value}" for key, value in launch.arguments.items())]
        runpy.run_path(launch.entrypoint, run_name="__main__")
        return
    module_name, _, function_name = launch.entrypoint.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ModuleNotFoundError, AttributeError) as error:
        traceback.print_exc()
        _refuse(launch, f"entrypoint {launch.entrypoint} cannot be loaded from {launch.code_folder}: {error}")
    function(**launch.arguments)


def _refuse(launch: ReplicaLaunch, reason: str) -> NoReturn:
    (Path(launch.folder) / "error.json").write_text(json.dumps({"refused": reason}))
    sys.stderr.write(f"refused: {reason}\n")
    raise SystemExit(EXIT_REFUSED)


def _show_stacks_when_asked() -> None:
    """Write all stacks to the output on a crash of native code, and whenever the supervisor asks for them."""
    faulthandler.enable(_OUTPUT)
    faulthandler.register(STACK_SIGNAL, _OUTPUT)


def _raise_oom_score() -> None:
    """Let the kernel prefer a replica over its supervisor when memory runs out."""
    Path("/proc/self/oom_score_adj").write_text("300")
