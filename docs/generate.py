"""Write what the documentation takes from the code: keys, settings, commands, connection forms, an example.

``python docs/generate.py`` writes it; Sphinx does so before each build, and a test holds that nothing is out of date.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from airflow.cli.cli_config import ARG_VERBOSE, Arg, CLICommand, GroupCommand
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from airflow_tf.cli import get_cli_commands
from airflow_tf.cli.init import scaffold
from airflow_tf.pipeline import dag_fields, fields, models, session_config
from airflow_tf.pipeline.schema import declaration_schema, meanings
from airflow_tf.provider_info import get_provider_info

DOCS = Path(__file__).parent
_LONG_METAVAR = 20  # Airflow's of --output lists its choices
_TEMPLATE = "{{ var.value.x }}"
_BLOCK = re.compile(r"<!-- (keys of \w+|settings) -->\n.*?<!-- end -->", re.DOTALL)
_NOUNS: list[tuple[Any, str]] = [
    (fields.Size, "size"),
    (fields.Percent, "percent"),
    (fields.Span, "duration"),
    (fields.Duration, "duration"),
    (fields.Seconds, "seconds"),
    (fields.Rank, "integer"),
    (fields.RunUri, "URI"),
    (fields.StaticUri, "URI"),
    (fields.Entrypoint, "script or function"),
    (session_config.SessionConfig, "mapping or file"),
    (dag_fields.Schedule, "cron text, preset, list of asset URIs or timetable"),
    (dag_fields.StartDate, "date"),
    (models.Callbacks, "name, mapping or list of both"),
    (fields.Version, "`1`"),
]
_LEFT_TO_AIRFLOW = {"deferrable"}
"""Keys whose default in the model is not what counts where they are left out."""

_READ_AT_PARSE = {"schedule", "params"}
"""Keys in whose values a template is just text."""


def generate() -> dict[Path, str]:
    """Return every file that is written from the code, or has blocks that are."""
    pages = {DOCS / name: _filled((DOCS / name).read_text()) for name in ("declaration.md", "operations.md")}
    reference = DOCS / "reference"
    return pages | {
        reference / "commands.md": "\n".join(_commands()) + "\n",
        reference / "connection_forms.md": "\n".join(_connection_forms()) + "\n",
        reference / "churn.tf.yaml": _example(),
    }


def write() -> None:
    """Write what is out of date."""
    for path, text in generate().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def write_schema(path: Path) -> None:
    """Write the JSON Schema of the declaration, which the site serves beside its pages."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(declaration_schema(), indent=1) + "\n")


def _filled(page: str) -> str:
    return _BLOCK.sub(lambda found: f"<!-- {found[1]} -->\n{_block(found[1])}\n<!-- end -->", page)


def _block(name: str) -> str:
    return "\n".join(_settings() if name == "settings" else _keys(getattr(models, name.removeprefix("keys of "))))


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _keys(model: type[models.Spec]) -> Iterator[str]:
    hints = get_type_hints(model, include_extras=True)
    told = meanings()[model.__name__]
    return _table(
        ("key", "type, default", "meaning"),
        ((f"`{name}`", _kind(hints[name], name, field), told[name]) for name, field in model.model_fields.items()),
    )


def _kind(hint: Any, name: str, field: FieldInfo) -> str:  # noqa: ANN401 (any annotation)
    default = None if name in _LEFT_TO_AIRFLOW else field.default
    is_plain = isinstance(default, bool | int | float | str | timedelta)
    parts = [_noun(hint)]
    if field.is_required():
        parts.append("required")
    elif is_plain:
        parts.append(f"default {_shown(default)}")
    return ", ".join([*parts, *(["**T**"] if name not in _READ_AT_PARSE and _takes_templates(hint) else [])])


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, timedelta):
        minutes, seconds = divmod(round(default.total_seconds()), 60)
        return f"`{minutes}m`" if minutes and not seconds else f"`{minutes * 60 + seconds}s`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _noun(hint: Any) -> str:  # noqa: ANN401 (any annotation)
    for known, noun in _NOUNS:
        if hint == known:
            return noun
    if get_origin(hint) is Annotated:
        return _noun(get_args(hint)[0])
    if get_origin(hint) in {Union, UnionType}:
        return " or ".join(dict.fromkeys(_noun(each) for each in get_args(hint) if each is not NoneType))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(f'`{value}`' for value in get_args(hint))}"
    if get_origin(hint) is list:
        return f"list of {_noun(get_args(hint)[0])}"
    if get_origin(hint) is dict or (isinstance(hint, type) and issubclass(hint, models.Spec)):
        return "mapping"
    return {bool: "boolean", int: "integer", float: "number", str: "text"}.get(hint, "any value")


def _takes_templates(hint: Any) -> bool:  # noqa: ANN401 (any annotation)
    """Try it: a key takes templates if its own checks let one pass."""
    for value in (_TEMPLATE, [_TEMPLATE], {"x": _TEMPLATE}):
        try:
            TypeAdapter(hint).validate_python(value)
        except ValidationError:
            continue
        return True
    return False


def _settings() -> Iterator[str]:
    options: Mapping[str, Mapping[str, Any]] = get_provider_info()["config"]["airflow_tf"]["options"]
    rows = (
        (f"`{name}`", f"`{option['default']}`" if option["default"] else "", _text(option["description"]))
        for name, option in options.items()
    )
    return _table(("name", "default", "meaning"), rows)


def _text(description: str) -> str:
    return description.replace("``", "`")


def _connection_forms() -> Iterator[str]:
    yield "# Connection forms"
    for form in get_provider_info()["connection-types"]:
        behaviour = form["ui-field-behaviour"]
        shown = {
            name: behaviour["relabeling"].get(name, name.title())
            for name in ("host", "port", "login", "password", "schema", "extra")
            if name not in behaviour["hidden-fields"]
        }
        yield f"\n## {form['hook-name']}: type `{form['connection-type']}`\n"
        named = ((label, f"`{name}`", _example_of(behaviour, name)) for name, label in shown.items())
        more = (
            (field["label"], f"extra `{name}`", field["description"]) for name, field in form["conn-fields"].items()
        )
        yield from _table(("in the form", "of the connection", "what it is"), iter([*named, *more]))


def _example_of(behaviour: Mapping[str, Any], name: str) -> str:
    example = behaviour["placeholders"].get(name)
    return f"like `{example}`" if example else ""


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "What `airflow tf COMMAND --help` says; [operations](../operations.md) says when to use which."
    yield "All take `--verbose`: more of what is logged."
    for group in get_cli_commands():
        yield from _command(f"airflow {group.name}", group)


def _command(name: str, command: CLICommand) -> Iterator[str]:
    if isinstance(command, GroupCommand):
        for each in command.subcommands:
            yield from _command(f"{name} {each.name}", each)
        return
    yield f"\n## {name}\n\n{command.help}.\n"
    yield from _table(("argument", "meaning"), (_argument(arg) for arg in command.args if arg is not ARG_VERBOSE))


def _argument(arg: Arg) -> tuple[str, str]:
    options = arg.kwargs
    metavar = options.get("metavar") if len(str(options.get("metavar"))) < _LONG_METAVAR else None
    value = metavar or (None if options.get("action") else arg.flags[-1].lstrip("-").upper())
    is_positional = not arg.flags[0].startswith("-")
    flags = f"`{value or arg.flags[0].upper()}`" if is_positional else ", ".join(f"`{flag}`" for flag in arg.flags)
    if value and not is_positional:
        flags += f" `{value}`"
    text = " ".join(str(options.get("help", "")).split())
    if options.get("choices") and "llowed values" not in text:
        text += f" ({', '.join(f'`{each}`' for each in options['choices'])})"
    return flags, text


def _example() -> str:
    with tempfile.TemporaryDirectory() as folder:
        scaffold("churn", Path(folder))
        return (Path(folder) / "churn.tf.yaml").read_text().replace(Path(folder).as_uri(), "file:///…/dags")


if __name__ == "__main__":
    write()
