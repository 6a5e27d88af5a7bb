"""What the keys of a declaration must be together, once each of them is right for itself. Every rule is a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from airflow_tf.core.cluster import EVALUATOR, plan_roles, sharers, trainers
from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.verdict import parse_success
from airflow_tf.pipeline.dag_fields import to_param
from airflow_tf.pipeline.errors import DataPath, suggest
from airflow_tf.pipeline.models import Declaration

_OF_METHODS = {
    "metric": ("best", "top_k"),
    "mode": ("best", "top_k"),
    "weights": ("average", "top_k"),
    "top": ("top_k",),
    "decay": ("ema",),
    "last": ("ema",),
    "not_finite": ("average", "top_k", "ema", "greedy_soup"),
    "optimizer": ("average", "top_k", "ema", "greedy_soup"),
}
"""Key of the ``checkpoints`` section -> the methods that use it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A key that does not fit to the others."""

    path: DataPath
    what: str
    why: str = ""
    todo: str = ""


def conflicts(declaration: Declaration, broken: Collection[DataPath] = ()) -> list[Conflict]:
    """Return all of them.

    :param broken: keys that are wrong for themselves and stand for something else here: what is asked of them is not
        asked.
    """
    return [
        found
        for rule, keys in _RULES.items()
        if not any(_touch(key, path) for key in keys for path in broken)
        for found in rule(declaration)
    ]


def _touch(key: DataPath, path: DataPath) -> bool:
    """Tell whether one of the paths leads to the other."""
    length = min(len(key), len(path))
    return key[:length] == path[:length]


def _params(declaration: Declaration) -> Iterator[Conflict]:
    for name, value in declaration.params.items() if declaration.schedule else ():
        if not to_param(value).has_value:
            why = "a scheduled run has nobody to ask for its value"
            yield Conflict(("params", name), "it needs a default", why, "Add a default, or remove 'schedule'.")


def _catchup(declaration: Declaration) -> Iterator[Conflict]:
    if declaration.catchup and not (declaration.start_date and isinstance(declaration.schedule, str | dict)):
        why = "without a start and a schedule by time there is nothing to catch up on"
        yield Conflict(("catchup",), "it needs 'start_date' and 'schedule'", why, "Add them, or remove it.")


def _evaluated_inputs(declaration: Declaration) -> Iterator[Conflict]:
    for index, name in enumerate((declaration.evaluate.inputs if declaration.evaluate else None) or []):
        if name not in declaration.inputs:
            declared = ", ".join(declaration.inputs) or "none"
            todo = f"{suggest(name, list(declaration.inputs))} Declared are: {declared}.".strip()
            yield Conflict(("evaluate", "inputs", index), f"{name!r} is not declared under 'inputs'", todo=todo)


def _shards(declaration: Declaration) -> Iterator[Conflict]:
    for name, spec in declaration.inputs.items():
        header = spec.check.header if spec.check and "header" in spec.check.model_fields_set else None
        if spec.shard == "lines" and header:
            todo = "Write lines_with_header: each share then begins with the header."
            yield Conflict(("inputs", name, "shard"), "it cannot be lines", "the check names a header", todo)
        if spec.shard == "lines_with_header" and header is False:
            why = "the check says that the files have no header"
            yield Conflict(("inputs", name, "shard"), "it cannot be lines_with_header", why, "Write lines.")


def _sharing(declaration: Declaration) -> Iterator[Conflict]:
    for name in [name for name, spec in declaration.inputs.items() if spec.shard]:
        try:
            sharers(declaration.train.strategy, {}, declaration.devices.count)
        except DeclarationError as error:
            yield Conflict(("inputs", name, "shard"), error.what, error.why, error.todo)


def _strategy(declaration: Declaration) -> Iterator[Conflict]:
    train, count, method = declaration.train, declaration.devices.count, declaration.checkpoints.aggregate
    if declaration.sweep:
        count = len(declaration.sweep.arguments)
    where: DataPath = ("train", "roles") if train.roles is not None else ("train", "strategy")
    try:
        roles = plan_roles(train.strategy, train.roles, count)
        where = ("train", "success")
        success = train.success if isinstance(train.success, str) else train.success.model_dump()
        parse_success(success, trainers(roles, count))
    except DeclarationError as error:
        yield Conflict(where, error.what, error.why, error.todo)
        return
    if train.evaluator_grace is not None and EVALUATOR not in roles:
        todo = "Declare one under 'roles', or remove this."
        yield Conflict(("train", "evaluator_grace"), "there is no evaluator", todo=todo)
    where = ("checkpoints", "aggregate")
    if roles and method not in {None, "chief", "ema", "none"}:
        why = f"the replicas of a {train.strategy} gang train one model, and its chief saves it"
        yield Conflict(where, f"it cannot be {method}", why, "Write chief, or leave it out.")
    if not roles and method == "chief":
        yield Conflict(
            where, "it cannot be chief", f"{train.strategy} replicas have no chief", "Choose average or best."
        )


def _method(declaration: Declaration) -> Iterator[Conflict]:
    checkpoints, evaluate = declaration.checkpoints, declaration.evaluate
    if declaration.sweep:
        return
    method, where = checkpoints.aggregate, ("checkpoints", "aggregate")
    for key, methods in _OF_METHODS.items():
        if key in checkpoints.model_fields_set and (method or "average") not in methods:
            todo = f"Remove it, or choose {' or '.join(methods)}."
            yield Conflict(("checkpoints", key), f"{method or 'average'} does not use it", todo=todo)
    if method == "top_k" and (checkpoints.metric is None or checkpoints.top is None):
        yield Conflict(where, "top_k needs 'metric' and 'top'", todo="Add both.")
    if method == "greedy_soup" and not evaluate:
        yield Conflict(where, "greedy_soup needs an 'evaluate' section", todo="Add it.")
    undecided = method == "best" and checkpoints.metric is None and checkpoints.publish and not evaluate
    if undecided and declaration.devices.count > 1:
        why = "the best replica is the one with the best metric of an evaluation"
        yield Conflict(
            where, "best needs an 'evaluate' section", why, "Add an evaluate section, or checkpoints.metric."
        )
    if checkpoints.top is not None and checkpoints.top > declaration.devices.count:
        why = f"there are {declaration.devices.count} replicas"
        yield Conflict(
            ("checkpoints", "top"), f"{checkpoints.top} is too many", why, "Give a number not above devices.count."
        )


def _publication(declaration: Declaration) -> Iterator[Conflict]:
    checkpoints, evaluate = declaration.checkpoints, declaration.evaluate
    needy = [key for key, given in (("evaluate", evaluate), ("checkpoints.publish", checkpoints.publish)) if given]
    if checkpoints.aggregate == "none" and needy:
        todo = f"Choose another method, or remove {' and '.join(needy)}."
        yield Conflict(("checkpoints", "aggregate"), f"none leaves no checkpoint for {' and '.join(needy)}", todo=todo)
    if checkpoints.initial_checkpoint == "latest" and not checkpoints.publish:
        why = "the latest version is looked for below checkpoints.publish"
        yield Conflict(
            ("checkpoints", "initial_checkpoint"), "nothing is published", why, "Give a URI, or add publish."
        )
    todo = "Add 'publish', or remove this."
    if checkpoints.upload_every is not None and not checkpoints.publish:
        yield Conflict(("checkpoints", "upload_every"), "checkpoints are copied below 'publish'", todo=todo)
    if checkpoints.export and not checkpoints.publish:
        yield Conflict(("checkpoints", "export"), "it is published with the checkpoint, and nothing is", todo=todo)
    if declaration.approval and not checkpoints.publish:
        todo = "Add 'checkpoints.publish', or remove this."
        yield Conflict(("approval",), "it is asked for before a publication, and nothing is published", todo=todo)
    if checkpoints.keep and not checkpoints.publish:
        todo = "Add 'publish', or remove this."
        yield Conflict(("checkpoints", "keep"), "it is for what is published, and nothing is", todo=todo)
    if checkpoints.keep and checkpoints.keep.best and not evaluate:
        yield Conflict(("checkpoints", "keep", "best"), "it needs the metric of an 'evaluate' section", todo="Add it.")


def _sweep(declaration: Declaration) -> Iterator[Conflict]:
    sweep, train, checkpoints = declaration.sweep, declaration.train, declaration.checkpoints
    if sweep is None:
        return
    if declaration.devices.count != 1:
        todo = "Remove it; sweep.parallel limits how many train at the same time, per_replica gives each more devices."
        yield Conflict(("devices", "count"), "a sweep has none", "each trial is one replica", todo)
    if train.strategy != "independent":
        why = "a trial is one process on its own devices"
        yield Conflict(("train", "strategy"), f"{train.strategy} does not fit a sweep", why, "Remove it.")
    if train.success == "chief":
        todo = "Write all, or {at_least: n} with a number of trials."
        yield Conflict(("train", "success"), "chief does not fit a sweep", "trials have no chief", todo)
    for key in ("aggregate", *_OF_METHODS):
        if key in checkpoints.model_fields_set:
            why = "the checkpoint of a sweep is its best trial's, by sweep.metric"
            yield Conflict(("checkpoints", key), "a sweep does not use it", why, "Remove it.")
    for name, spec in declaration.inputs.items():
        if spec.shard:
            what = "a sweep does not share inputs"
            yield Conflict(("inputs", name, "shard"), what, "each trial sees all of them", "Remove it.")
    others = len(sweep.arguments) - 1
    if sweep.stop_early and sweep.stop_early.min_trials > others:
        where: DataPath = ("sweep", "stop_early", "min_trials")
        todo = f"Write at most {others}." if others else "Remove stop_early, or write more trials."
        yield Conflict(where, f"{sweep.stop_early.min_trials} is too many", f"a trial has {others} others", todo)


_RULES: dict[Callable[[Declaration], Iterator[Conflict]], tuple[DataPath, ...]] = {
    _params: (("params",), ("schedule",)),
    _catchup: (("catchup",), ("start_date",), ("schedule",)),
    _evaluated_inputs: (("inputs",), ("evaluate", "inputs")),
    _shards: (("inputs",),),
    _sharing: (("inputs",), ("train", "strategy")),
    _strategy: (
        ("sweep",),
        ("train", "strategy"),
        ("train", "roles"),
        ("train", "success"),
        ("train", "evaluator_grace"),
        ("devices", "count"),
        ("checkpoints", "aggregate"),
    ),
    _method: (("checkpoints",), ("devices", "count"), ("sweep",)),
    _publication: (("checkpoints",),),
    _sweep: (("sweep",), ("devices", "count"), ("train", "strategy"), ("train", "success"), ("checkpoints",)),
}
"""Each rule, with the keys that it reads; of sections that only have to be there it reads none."""
