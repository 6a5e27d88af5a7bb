"""Several trainings in one declaration: each stage as a declaration of its own, and how they follow each other."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from airflow_tf.pipeline.errors import DataPath, Position, Problem, problems_of, suggest
from airflow_tf.pipeline.extends import lay_over
from airflow_tf.pipeline.fields import STAGE_NAME
from airflow_tf.pipeline.models import Declaration, StageSpec
from airflow_tf.pipeline.yaml_reader import Document

KEY = "stages"

NAME = re.compile(STAGE_NAME)
LINKS = ("after", "starts_from")


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage of a document: its keys laid over those of the top, with their positions in the file."""

    name: str
    document: Document
    links: StageSpec
    inherited: frozenset[DataPath]

    @property
    def before(self) -> list[str]:
        """The stages that it waits for."""
        first = [self.links.starts_from] if self.links.starts_from is not None else []
        return list(dict.fromkeys([*first, *self.links.after]))

    def told(self, problem: Problem) -> Problem:
        """Return a problem of the stage with its path in the file: what stands at the top is the top's."""
        is_own = problem.path not in self.inherited and problem.path[:1] and problem.path[0] in StageSpec.model_fields
        return replace(problem, path=(KEY, self.name, *problem.path)) if is_own else problem


def has_stages(document: Document) -> bool:
    """Tell whether a document is of several trainings."""
    stages = document.data.get(KEY)
    return isinstance(stages, dict) and bool(stages)


def split(document: Document) -> tuple[list[StagePart], list[Problem]]:
    """Return the stages of a document in the order of the file, and what is wrong with their own keys."""
    parts: list[StagePart] = []
    problems: list[Problem] = []
    data = {key: value for key, value in document.data.items() if key != KEY}
    positions = {path: position for path, position in document.positions.items() if path[:1] != (KEY,)}
    top = replace(document, data=data, positions=positions)
    for name, stage in document.data[KEY].items():
        where: DataPath = (KEY, name)
        if not NAME.fullmatch(name):
            todo = f"It must match {NAME.pattern}."
            problems.append(
                Problem(document.locate(where), where, f"{name!r} cannot be the name of a stage", todo=todo)
            )
        if not isinstance(stage, dict):
            todo = "Write train and what else is its own below it."
            problems.append(Problem(document.locate(where), where, f"{stage!r} is not a mapping", todo=todo))
            continue
        links = StageSpec()
        try:
            links = StageSpec.model_validate({key: stage[key] for key in LINKS if key in stage})
        except ValidationError as error:
            problems += [
                replace(each, path=(*where, *each.path), position=document.locate((*where, *each.path)))
                for each in problems_of(error, StageSpec, lambda _: Position(1, 1))
            ]
        problems += _unknown_keys(document, name, stage)
        own = {key: value for key, value in stage.items() if key in StageSpec.model_fields and key not in LINKS}
        merged, kept = lay_over(top, own)
        mine = {path[2:]: at for path, at in document.positions.items() if path[:2] == where and path[2:3] != ()}
        at_stage: dict[DataPath, Position] = {(): document.locate(where)}
        found = replace(document, data=merged, positions=kept | mine | at_stage)
        parts.append(StagePart(name, found, links, frozenset(kept)))
    return parts, problems


def _unknown_keys(document: Document, name: str, stage: Mapping[str, Any]) -> Iterator[Problem]:
    allowed = sorted(StageSpec.model_fields)
    for key in stage:
        if key not in allowed:
            path = (KEY, name, key)
            hint = suggest(key, allowed) or (f'"{key}" belongs to the top.' if key in Declaration.model_fields else "")
            yield Problem(
                document.locate(path), path, "unknown key", todo=f"{hint} Allowed here: {', '.join(allowed)}.".strip()
            )


def link_problems(
    document: Document, parts: Sequence[StagePart], checked: Mapping[str, Declaration]
) -> Iterator[Problem]:
    """Yield what is wrong with how the stages follow each other.

    :param checked: the declarations of those stages that are right for themselves.
    """
    names = [part.name for part in parts]
    for part in parts:
        yield from _unknown_stages(document, part, list(document.data[KEY]))
        if part.links.starts_from is not None and part.name in checked:
            yield from _start_problems(document, part, checked)
    try:
        in_order(parts)
    except graphlib.CycleError as error:
        circle = [name for name in names if name in error.args[1]]
        path: DataPath = (KEY, circle[0])
        listed = " and ".join(circle)
        what = f"{listed} wait for each other" if len(circle) > 1 else f"{listed} waits for itself"
        yield Problem(document.locate(path), path, what, todo="Remove one of their 'after' or 'starts_from'.")
    bases: dict[str, str] = {}
    for name, declaration in checked.items():
        base = declaration.checkpoints.publish
        if base is not None and bases.setdefault(base.rstrip("/"), name) != name:
            path = (KEY, name, "checkpoints", "publish")
            what = f"stage {bases[base.rstrip('/')]} publishes there too"
            why = "the versions of one run would have one name"
            yield Problem(document.locate(path), path, what, why, "Give each stage a base of its own.")


def _unknown_stages(document: Document, part: StagePart, known: Sequence[str]) -> Iterator[Problem]:
    links = part.links
    given: list[tuple[DataPath, str]] = [(("after", index), name) for index, name in enumerate(links.after)]
    given += [(("starts_from",), links.starts_from)] if links.starts_from is not None else []
    for where, name in given:
        if name not in known:
            path = (KEY, part.name, *where)
            todo = f"{suggest(name, known)} Stages are: {', '.join(known)}.".strip()
            yield Problem(document.locate(path), path, f"there is no stage {name!r}", todo=todo)


def _start_problems(document: Document, part: StagePart, checked: Mapping[str, Declaration]) -> Iterator[Problem]:
    """Yield what keeps a stage from beginning with what another one has made."""
    source, path = str(part.links.starts_from), (KEY, part.name, "starts_from")
    if checked[part.name].checkpoints.initial_checkpoint is not None:
        why = "it has an initial_checkpoint"
        yield Problem(document.locate(path), path, "the stage begins with one checkpoint", why, "Remove one of them.")
    if source in checked and checked[source].checkpoints.aggregate == "none":
        todo = "Choose another checkpoints.aggregate there."
        yield Problem(document.locate(path), path, f"stage {source} makes no checkpoint", "its aggregate is none", todo)


def in_order(parts: Sequence[StagePart]) -> list[StagePart]:
    """Return the stages so that each comes after those that it waits for.

    :raises graphlib.CycleError: if they wait for each other.
    """
    by_name = {part.name: part for part in parts}
    graph = {part.name: [name for name in part.before if name in by_name] for part in parts}
    return [by_name[name] for name in graphlib.TopologicalSorter(graph).static_order()]
