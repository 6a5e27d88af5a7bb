"""Declarations that extend another file: shared keys are written once, own keys are laid over them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_tf.pipeline.errors import DataPath, InvalidDeclarationError, Position, Problem
from airflow_tf.pipeline.yaml_reader import Document, read_yaml

KEY = "extends"
_WHERE: DataPath = (KEY,)
_MOST_FILES = 8


def read_declaration(file: Path, above: tuple[Path, ...] = ()) -> Document:
    """Read ``file`` and what it extends, as one document whose positions name the file of each key.

    Mappings are merged key by key; everything else of the extending file replaces what it extends, and null takes a
    key away.

    :param above: the files that extend this one.
    :raises InvalidDeclarationError: if one of them cannot be read or lies elsewhere, or they extend each other in a
        circle.
    """
    document = read_yaml(file)
    if KEY not in document.data:
        return document
    below = _read_extended(document, above)
    own = {key: value for key, value in document.data.items() if key != KEY}
    positions = {path: position for path, position in document.positions.items() if path != _WHERE}
    data, inherited = lay_over(below, own)
    return replace(document, data=data, positions=inherited | positions)


def _read_extended(document: Document, above: tuple[Path, ...]) -> Document:
    """Read the file that ``document`` extends; its positions name it."""
    named = document.data[KEY]
    files = (*above, document.file.absolute())
    if wrong := _refusal(named, document.file.parent, files):
        raise InvalidDeclarationError.of(document.file, [Problem(document.locate(_WHERE), _WHERE, *wrong)])
    file = (document.file.parent / named).absolute()
    try:
        below = read_declaration(file, files)
    except InvalidDeclarationError as error:
        found = [replace(problem, position=_in(file, problem.position)) for problem in error.problems]
        raise InvalidDeclarationError.of(document.file, found) from error
    return replace(below, positions={path: _in(file, position) for path, position in below.positions.items()})


def _refusal(named: Any, folder: Path, files: tuple[Path, ...]) -> tuple[str, str, str] | None:  # noqa: ANN401
    """Say what is wrong with a file to extend, why, and what to do; None if nothing is."""
    todo = "Give a file relative to this one."
    if isinstance(named, str) and not is_beside(folder, named):
        return not_beside(named)
    if not isinstance(named, str) or not (folder / named).is_file():
        return f"there is no file {named!r}", "", todo
    if (folder / named).absolute() in files:
        return f"{named!r} extends files in a circle", "", "Remove it."
    if len(files) >= _MOST_FILES:
        return f"more than {_MOST_FILES} files extend each other", "", "Write the keys into fewer files."
    return None


def is_beside(folder: Path, named: str) -> bool:
    """Tell whether a file that a declaration in ``folder`` names is there or below, also where links lead to."""
    if Path(named).is_absolute() or ".." in Path(named).parts:
        return False
    try:
        return (folder / named).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # links in a circle; a name that no file can have
        return False


def not_beside(named: str) -> tuple[str, str, str]:
    """Return what to say of a file that is not, why, and what to do: else a declaration could show any file."""
    what = f"{named!r} is not beside this file or below it"
    return what, "a declaration is read from its own folder only", "Give a file relative to this one."


def _in(file: Path, position: Position) -> Position:
    return position if position.file else position._replace(file=file)


def lay_over(below: Document, own: dict[str, Any]) -> tuple[dict[str, Any], dict[DataPath, Position]]:
    """Return the data of ``below`` with ``own`` laid over it, and the positions of what comes from ``below``."""
    replaced: list[DataPath] = []

    def merge(under: dict[str, Any], over: dict[str, Any], path: DataPath) -> dict[str, Any]:
        merged = dict(under)
        for key, value in over.items():
            if isinstance(value, dict) and isinstance(under.get(key), dict):
                merged[key] = merge(under[key], value, (*path, key))
                continue
            if value is None and key in under:
                del merged[key]
                replaced.append((*path, key))
            else:
                merged[key] = value
                replaced.append((*path, key))
        return merged

    data = merge(below.data, own, ())
    kept = {
        path: position
        for path, position in below.positions.items()
        if not any(path[: len(gone)] == gone for gone in replaced)
    }
    return data, kept
