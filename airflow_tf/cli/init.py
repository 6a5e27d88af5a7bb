"""The files of a first DAG: declaration, program, data and loader, which train as they are."""

from __future__ import annotations

import json
import random
import re
from importlib import resources
from pathlib import Path

from airflow_tf.core.cluster import STRATEGIES
from airflow_tf.core.errors import DeclarationError
from airflow_tf.pipeline.loader import SUFFIX
from airflow_tf.pipeline.schema import declaration_schema

_PROGRAMS = {"sync": "keras", "towers": "keras", "async": "coordinator", "v1_cluster": "session"}
"""Strategy -> its program, where that is not the one which knows nothing of other replicas."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,199}")
_FILES = 2
_ROWS = 1000
_IGNORE = ".airflowignore"


def scaffold(name: str, folder: Path, kind: str = STRATEGIES[0]) -> list[Path]:
    """Write the files of DAG ``name`` into ``folder`` and return them; touch nothing that is there already.

    :param kind: one of :data:`airflow_tf.core.cluster.STRATEGIES` or of the examples that the command names.
    :raises DeclarationError: if the name cannot be one of a DAG and a folder, if the folder does not exist, or if
        one of the files exists already; then nothing is written.
    """
    if not _NAME.fullmatch(name):
        raise DeclarationError(f"{name!r} cannot name a DAG and its folder", todo=f"It must match {_NAME.pattern}.")
    if not folder.is_dir():
        raise DeclarationError(f"there is no folder {folder}", todo="Make it, or give another one by --folder.")
    home = folder.absolute()
    contents = _contents(name, home, kind)
    taken = sorted(str(path) for path in contents if path.exists())
    if taken:
        raise DeclarationError(f"nothing was written: {', '.join(taken)} exists", todo="Choose another name.")
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [*contents, *_ignore(home / _IGNORE, f"{name}/")]


def _contents(name: str, home: Path, kind: str) -> dict[Path, str]:
    def template(resource: str) -> str:
        folder = resources.files(__package__) / "scaffold"
        text = (folder / resource).read_text().replace("@COMMON@\n", (folder / "common.yaml").read_text())
        data, models = (home / name / "data").as_uri(), (home / name / "models").as_uri()
        return text.replace("@NAME@", name).replace("@DATA@", data).replace("@MODELS@", models)

    return {
        home / f"{name}{SUFFIX}": template(f"{kind}.yaml"),
        home / f"{name}.schema.json": json.dumps(declaration_schema(), indent=1) + "\n",
        home / f"{name}.py": template("dag.py.txt"),
        home / name / "train.py": template(f"{_PROGRAMS.get(kind, 'train')}.py.txt"),
        **{home / name / "data" / f"part-{number}.csv": _rows(number) for number in range(_FILES)},
    }


def _rows(seed: int) -> str:
    draw = random.Random(seed)  # noqa: S311 - an example, not a secret
    rows = ["x1,x2,y"]
    for _ in range(_ROWS):
        first, second = draw.uniform(-1, 1), draw.uniform(-1, 1)
        rows.append(f"{first:.4f},{second:.4f},{3 * first - 2 * second + 1 + draw.gauss(0, 0.1):.4f}")
    return "\n".join(rows) + "\n"


def _ignore(file: Path, line: str) -> list[Path]:
    """Keep Airflow from searching the program's folder for DAGs; return the file if it was changed."""
    lines = file.read_text().splitlines() if file.exists() else []
    if line in lines:
        return []
    file.write_text("\n".join([*lines, line]) + "\n")
    return [file]
