"""What the commands of ``airflow tf checkpoints`` do: files only, neither Airflow's database nor the ledger."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from airflow_tf.cli.output import Row, command, confirm, print_rows
from airflow_tf.cli.versions import are_uris, remove_versions, show_versions
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.checkpoint.bundle import BundleReader
from airflow_tf.core.checkpoint.compare import differences_in_values
from airflow_tf.core.checkpoint.completeness import verify
from airflow_tf.core.checkpoint.folder import Found, Removal, checkpoints, plan_removal, remove
from airflow_tf.core.checkpoint.hdf5 import average_keras, is_keras, verify_keras
from airflow_tf.core.checkpoint.methods import ema_weights
from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.retention import Keep
from airflow_tf.core.units import format_bytes

_VARIABLES = Path("variables") / "variables"  # of a SavedModel


@command
def checkpoints_ls(args: Namespace) -> None:
    """List the checkpoints of folders, or the versions below URIs."""
    if are_uris(args.paths):
        show_versions(args)
        return
    rows = [_found_row(found) for path in args.paths for found in checkpoints(_folder(path))]
    print_rows(rows, args.output, _shown_found)


@command
def checkpoints_verify(args: Namespace) -> None:
    """Read checkpoints whole and compare every checksum; exit code 1 if one is not whole."""
    rows = [_verified(prefix) for path in args.paths for prefix in _prefixes(path)]
    print_rows(rows, args.output)
    if any(row["result"] == "failed" for row in rows):
        raise SystemExit(1)


@command
def checkpoints_average(args: Namespace) -> None:
    """Average checkpoints into a new one."""
    prefixes = [_prefix(path) for path in args.paths]
    if any(map(is_keras, [*prefixes, args.to])):
        _average_keras(prefixes, args)
        return
    if args.decay is not None and args.weights:
        raise CheckpointError("--decay and --weights exclude each other", todo="Give one of them.")
    weights = args.weights or (ema_weights(len(prefixes), args.decay) if args.decay is not None else ())
    report = average(
        prefixes,
        args.to,
        weights=weights,
        not_finite="leave_out" if args.leave_out else "refuse",
        optimizer="drop" if args.drop_optimizer else "average",
    )
    if args.rules:
        print_rows([{"tensor": name, "rule": rule} for name, rule in report.rules.items()], args.output)
        return
    shares = zip(report.inputs, report.weights, report.steps, strict=True)
    used = [{"input": prefix, "weight": weight, "step": step, "reason": ""} for prefix, weight, step in shares]
    left_out = [{"input": name, "weight": 0.0, "step": None, "reason": why} for name, why in report.left_out.items()]
    print_rows([*used, *left_out], args.output)


def _average_keras(prefixes: Sequence[str], args: Namespace) -> None:
    if len({Path(path).suffix for path in (*prefixes, args.to)}) > 1:
        raise CheckpointError("files of different kinds cannot be averaged", todo="Give all the same ending.")
    if args.weights or args.decay is not None or args.leave_out or args.drop_optimizer:
        raise CheckpointError("Keras files are averaged all alike and whole", todo="Leave the other options away.")
    rules = average_keras(prefixes, args.to)
    print_rows([{"tensor": name, "rule": rule} for name, rule in rules.items()], args.output)


@command
def checkpoints_diff(args: Namespace) -> None:
    """Say what differs between two checkpoints; exit code 1 if something does."""
    with BundleReader(_prefix(args.left)) as left, BundleReader(_prefix(args.right)) as right:
        rows: list[Row] = [
            {"tensor": found.tensor, "left": found.left, "right": found.right, "largest": found.largest}
            for found in differences_in_values(left, right)
        ]
    print_rows(rows, args.output, none="No difference")
    if rows:
        raise SystemExit(1)


@command
def checkpoints_prune(args: Namespace) -> None:
    """Remove the checkpoints of a folder, or the versions below a URI, that no rule keeps."""
    if are_uris([args.folder]):
        remove_versions(args)
        return
    if args.keep_best:
        raise CheckpointError("a folder's checkpoints have no metrics", todo="Leave --keep-best away.")
    rules = Keep(last=args.keep_last, every=args.keep_every, younger_than_seconds=args.younger_than)
    folder = _folder(args.folder)
    plan = plan_removal(folder, rules, {})
    if not args.dry_run and not args.yes:
        print_rows([_removal_row(removal, "would be removed") for removal in plan], "table", _shown_found)
        confirm("Remove all this?", yes=False)
    if not args.dry_run:
        try:
            remove(folder, plan)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be cleaned", str(error), "What is left goes next time.") from error
    done = "would be removed" if args.dry_run else "removed"
    print_rows([_removal_row(removal, done) for removal in plan], args.output, _shown_found)


def _folder(path: str) -> Path:
    folder = Path(path)
    return folder / _VARIABLES.parent if (folder / f"{_VARIABLES}.index").exists() else folder


def _prefix(path: str) -> str:
    """Return the prefix that a user means: with or without ``.index``, or a folder with one checkpoint."""
    found = _prefixes(path)
    if len(found) != 1:
        what = f"{path} holds {len(found)} checkpoints"
        raise CheckpointError(what, todo="Give the prefix of one; 'airflow tf checkpoints ls' lists them.")
    return found[0]


def _prefixes(path: str) -> Sequence[str]:
    if not Path(path).is_dir():
        return [path.removesuffix(".index")]
    found = [each.prefix for each in checkpoints(_folder(path))]
    found += sorted(str(file) for file in Path(path).iterdir() if is_keras(file.name))
    if not found:
        raise CheckpointError(f"there is no checkpoint in {path}")
    return found


def _verified(prefix: str) -> Row:
    try:
        verify_keras(prefix) if is_keras(prefix) else verify(prefix)
    except CheckpointError as error:
        return {"checkpoint": prefix, "result": "failed", "reason": str(error)}
    return {"checkpoint": prefix, "result": "whole", "reason": ""}


def _found_row(found: Found) -> Row:
    return {
        "checkpoint": found.prefix,
        "step": found.step,
        "tensors": found.tensors,
        "bytes": found.size_bytes,
        "saved": datetime.fromtimestamp(found.seconds, UTC).isoformat(timespec="seconds"),
        "problem": found.problem,
    }


def _removal_row(removal: Removal, done: str) -> Row:
    return _found_row(removal.found) | {"result": "kept" if removal.kept else done, "reason": removal.kept}


def _shown_found(row: Row) -> Row:
    size = row["bytes"]
    shown = {name: value for name, value in row.items() if name != "bytes"}
    return shown | {"size": format_bytes(size)}
