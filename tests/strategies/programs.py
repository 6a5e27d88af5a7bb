"""The examples' programs, changed so that a test can kill one of their processes in time."""

from __future__ import annotations

from pathlib import Path

DAGS = Path(__file__).parents[2] / "dags"


def program(name: str) -> str:
    """Return an example's program; it says its process id first."""
    text = (DAGS / name).read_text()
    head, future, body = text.partition("from __future__ import annotations\n")
    assert future, f"{name} does not begin as the other examples do"
    return f"{head}{future}import os as _os\nprint('pid', _os.getpid(), flush=True)\n{body}"


def slowed(text: str, line: str, seconds: float = 0.02) -> str:
    """Let a program rest after ``line``, which is one step of it."""
    assert text.count(f"{line}\n") == 1, f"no single line {line!r}"
    return text.replace(f"{line}\n", f"{line}; __import__('time').sleep({seconds})\n")


def late(text: str, role: str = "", index: int = 0, seconds: float = 3.0) -> str:
    """Let one member of a cluster (without one: the program) come late to the first attempt."""
    task = {"type": role, "index": index} if role else None
    begins = "print('pid', _os.getpid(), flush=True)\n"
    assert text.count(begins) == 1
    return text.replace(
        begins,
        f"{begins}import json, time\n"
        f"_task = json.loads(_os.environ.get('TF_CONFIG', '{{}}')).get('task')\n"
        f"if _task == {task!r} and _os.environ['AIRFLOW_TF_ATTEMPT'] == '1':\n"
        f"    print('comes late', flush=True)\n    time.sleep({seconds})\n",
    )
