"""Tables, JSON and YAML in the ways of Airflow's own commands."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml
from airflow.cli.simple_table import AirflowConsole, SimpleTable
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from airflow_tf.core.errors import AirflowTfError

Command = Callable[[Namespace], None]
Row = dict[str, Any]

_CELL_CHARACTERS = 80
_ENDLESS_CHARACTERS = 100_000
_CONTEXT_VARIABLE = "_AIRFLOW_PROCESS_CONTEXT"


def command(function: Command) -> Command:
    """Make ``function`` a command: quiet unless ``--verbose``, with errors of ours as one line and exit code 1.

    So are files that cannot be read or written.
    ^C ends it with code 130, and a reader of its output that went away (``| head``) with 0.
    """

    @suppress_logs_and_warning
    @providers_configuration_loaded
    @functools.wraps(function)
    def run(args: Namespace) -> None:
        try:
            with _airflows_database():
                function(args)
            sys.stdout.flush()
        except AirflowTfError as error:
            raise SystemExit(f"{_called(function, args)}: {error}") from error
        except AirflowNotFoundException as error:
            todo = "Add it: airflow connections add, or AIRFLOW_CONN_<ID> in the environment."
            raise SystemExit(f"{_called(function, args)}: {str(error).rstrip('.')}. {todo}") from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what the interpreter still flushes
            raise SystemExit(0) from None
        except OSError as error:
            told = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise SystemExit(f"{_called(function, args)}: {told}") from error

    return run


def _called(function: Command, args: Namespace) -> str:
    """Return the command as its user has typed it; functions of a group are named ``<group>_<command>``."""
    group = function.__name__.partition("_")[0]
    return " ".join(
        ["airflow tf", *([group] if group in {"cache", "checkpoints", "hosts", "import"} else []), args.subcommand]
    )


@contextlib.contextmanager
def _airflows_database() -> Iterator[None]:
    """Let Variables and connections be looked up in Airflow's database too, as its own commands do."""
    before = os.environ.get(_CONTEXT_VARIABLE)
    os.environ[_CONTEXT_VARIABLE] = "server"
    try:
        yield
    finally:
        os.environ.pop(_CONTEXT_VARIABLE)
        if before is not None:
            os.environ[_CONTEXT_VARIABLE] = before


def print_rows(
    rows: Sequence[Row], output: str, shown: Callable[[Row], Row] | None = None, *, none: str = "No data found"
) -> None:
    """Print ``rows``, all with the same keys, in the format that ``--output`` names.

    :param shown: what of a row a table shows, and how; JSON and YAML have the whole row as it is.
    :param none: what is said instead of an empty table.
    """
    if output == "json":
        print(json.dumps(list(rows)))  # noqa: T201
    elif output == "yaml":
        print(yaml.safe_dump(list(rows), sort_keys=False), end="")  # noqa: T201
    else:
        table = [shown(row) if shown else row for row in rows]
        if output == "plain":
            cells = [{name: _one_line(value) for name, value in row.items()} for row in table]
            console().print_as_plain_table(cells)
        else:
            console().print(make_table(table) if table else none)


def console() -> AirflowConsole:
    """Return a console that shows texts as they are: a program's message may look like markup.

    Into a file or a pipe it writes lines as long as they are.
    """
    made = AirflowConsole(markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = _ENDLESS_CHARACTERS
    return made


def make_table(rows: Sequence[Row]) -> SimpleTable:
    """Return ``rows`` as a table with one line per row as long as the terminal is wide enough."""
    cut = _cell if console().is_terminal else _one_line
    table = SimpleTable(show_header=True)  # type: ignore[no-untyped-call]  # Airflow's own
    for name in rows[0] if rows else ():
        table.add_column(name)
    for row in rows:
        table.add_row(*map(cut, row.values()))
    return table


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on, unless ``yes``.

    :raises SystemExit: if the answer is not yes, or nobody is there to give one.
    """
    if yes:
        return
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        raise SystemExit("Nothing was done. Answer y, or give --yes.")


def _cell(value: object) -> str:
    text = _one_line(value)
    return text if len(text) <= _CELL_CHARACTERS else f"{text[: _CELL_CHARACTERS - 1]}…"


def _one_line(value: object) -> str:
    """Return a value as text without line ends, tabs and control sequences of a terminal."""
    if value is None:
        return ""
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return "".join(character if character.isprintable() else " " for character in text)
