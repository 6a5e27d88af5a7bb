"""Make the DAGs of declarations known to Airflow, from a DAG file of three lines."""

from __future__ import annotations

import logging
import re
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_parsing_context

from airflow_tf.pipeline.build import build_dag
from airflow_tf.pipeline.declaration import check_document
from airflow_tf.pipeline.errors import InvalidDeclarationError, Problem
from airflow_tf.pipeline.extends import read_declaration
from airflow_tf.pipeline.placeholder import placeholder_dag
from airflow_tf.pipeline.yaml_reader import Document

SUFFIX = ".tf.yaml"

_DAG_ID = re.compile(
    rb"""^(?:\xef\xbb\xbf)?(["']?)dag_id\1[ \t]*:"""
    rb"""(?:[ \t]+(["']?)(?P<plain>[A-Za-z0-9_.-]+)\2(?:[ \t]+\#.*)?[ \t]*\r?$)?""",
    re.MULTILINE,
)
"""A line that names the DAG; ``plain`` where its text is the id."""

_log = logging.getLogger(__name__)


def load_dags(namespace: MutableMapping[str, Any], loader_file: str, name: str | None = None) -> None:
    """Put the DAGs of the declarations beside ``loader_file`` into ``namespace``, a module's ``globals()``.

    With ``name``, of that file only: its errors become the import error that Airflow shows for the loader. Without,
    of every ``*.tf.yaml`` there: an import error would hide all the DAGs of the folder, so a broken file becomes a
    placeholder DAG named after the file, with the errors as its documentation.

    Airflow runs the loader again for every task it starts; then only the DAG that it asks for is built.

    :raises InvalidDeclarationError: if ``name`` is given and that file has problems.
    """
    folder, wanted = Path(loader_file).absolute().parent, get_parsing_context().dag_id
    if name is not None:
        document = read_declaration(folder / name)
        dags = [build_dag(check_document(document))] if wanted in {None, _dag_id(document)} else []
    else:
        dags = _load_folder(folder, wanted)
    namespace.update({f"dag {dag.dag_id}": dag for dag in dags})  # a key that no variable of the module can have


def _load_folder(folder: Path, wanted: str | None) -> list[DAG]:
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        _log.warning("No declaration (*%s) in %s", SUFFIX, folder)
    if wanted is not None and (found := _load([file for file in files if _may_declare(file, wanted)], wanted)):
        return found
    return _load(files, wanted)


def _may_declare(file: Path, dag_id: str) -> bool:
    """Tell whether ``file`` may declare ``dag_id``: for one task, those that certainly do not need not be understood.

    Certain is one plain line with another id; an id may also be inherited, escaped, or written over several lines.
    """
    try:
        found = list(_DAG_ID.finditer(file.read_bytes()))
    except OSError:  # is told when it is read as a declaration
        return True
    named = found[0]["plain"] if len(found) == 1 else None
    return named is None or named == dag_id.encode()


def _load(files: Sequence[Path], wanted: str | None) -> list[DAG]:
    read = {file: _read(file) for file in files}
    owners: dict[str, Path] = {}
    for file, document in read.items():
        if isinstance(document, Document) and (dag_id := _dag_id(document)):
            owners.setdefault(dag_id, file)
    dags = []
    for file, document in read.items():
        spare_id = _spare_id(file, owners)
        if wanted is None or wanted in {spare_id, isinstance(document, Document) and _dag_id(document)}:
            dags.append(_build(document, spare_id, owners))
    return dags


def _read(file: Path) -> Document | InvalidDeclarationError:
    try:
        return read_declaration(file)
    except InvalidDeclarationError as error:
        return error


def _build(document: Document | InvalidDeclarationError, spare_id: str, owners: dict[str, Path]) -> DAG:
    """Build the DAG, or the placeholder that says why not."""
    if isinstance(document, InvalidDeclarationError):
        errors = str(document)
    else:
        try:
            _check_owner(document, owners)
            return build_dag(check_document(document))
        except InvalidDeclarationError as error:
            errors = str(error)
        except Exception as error:  # noqa: BLE001  whatever is wrong with one file must not hide the others
            errors = f"{document.file}: {type(error).__name__}: {error}"
    _log.error("Broken declaration, shown as DAG %s:\n%s", spare_id, errors)
    return placeholder_dag(spare_id, errors)


def _check_owner(document: Document, owners: dict[str, Path]) -> None:
    dag_id = _dag_id(document)
    owner = owners[dag_id] if dag_id else document.file
    if owner != document.file:
        path = ("dag_id",)
        problem = Problem(
            document.locate(path), path, f"{dag_id!r} is taken", f"{owner.name} declares it", "Rename one."
        )
        raise InvalidDeclarationError.of(document.file, [problem])


def _dag_id(document: Document) -> str | None:
    dag_id = document.data.get("dag_id")
    return dag_id if isinstance(dag_id, str) else None


def _spare_id(file: Path, owners: dict[str, Path]) -> str:
    """Return the id of the file's placeholder: its name, unless another file's DAG is called so."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", file.name.removesuffix(SUFFIX))
    return name if owners.get(name, file) == file else f"{name}.broken"
