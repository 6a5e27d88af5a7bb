"""Datasets over staged files: CSV and TFRecord, plain or compressed, with errors that name file, line and column.

Compression is told by content. Lines are decoded in blocks by TensorFlow's own operation; only a block that it refuses
is looked at line by line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf  # noqa: TID253 -- loaded in the training process only, by name

from airflow_tf.core.codecs import HEAD_BYTES, compression_of
from airflow_tf.core.csv_rows import COLUMN_TYPES, BadRowError, hint, parse_row, why_not
from airflow_tf.core.errors import DeclarationError, InputError

_BOM = b"\xef\xbb\xbf"
_BLOCK_ROWS = 8192
_BUFFER_BYTES = 8 << 20

Paths = str | Path | Sequence[str | Path]


def data_files(paths: Paths) -> list[Path]:
    """Return the files of a folder (with all below it), a file or several of them, in order of their names.

    Names that begin with ``_`` or ``.`` are no data, as everywhere in Hadoop; nor are empty files.

    :raises InputError: if there is none.
    """
    several = [paths] if isinstance(paths, str | Path) else paths
    found = [file for path in several for file in _below(Path(path))]
    if not found:
        raise InputError(f"{', '.join(map(str, several))}: no data file")
    return found


def _below(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    return [file for file in files if not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)]


def records_dataset(paths: Paths) -> tf.data.Dataset:
    """Return the records of TFRecord files, plain, gzip or zlib, as a dataset of scalar strings."""
    files = data_files(paths)
    named = tf.data.Dataset.from_tensor_slices(([str(file) for file in files], [_compression(file) for file in files]))
    return named.flat_map(
        lambda name, compression: tf.data.TFRecordDataset(name, compression, buffer_size=_BUFFER_BYTES)
    )


def csv_dataset(
    paths: Paths,
    columns: Sequence[str],
    *,
    header: bool = False,
    delimiter: str = ",",
    defaults: Sequence[Any] | None = None,
    batch_rows: int = 1024,
) -> tf.data.Dataset:
    """Return rows of CSV files as a dataset of tuples, one tensor of ``batch_rows`` values for each column.

    Blank lines and byte order marks are skipped, line ends may be LF or CR LF. A quoted field that holds a line end is
    refused, since the files are read by lines. Errors of single rows are raised when they are read, as
    ``InvalidArgumentError`` with file, line and column.

    :param columns: type of each column: ``int32``, ``int64``, ``float32``, ``float64`` or ``string``.
    :param header: the first line of every file names the columns; files that name them otherwise are refused.
    :param defaults: value of an empty field for each column; None: an empty field is refused.
    :raises InputError: if a file's compression is unknown or the headers differ.
    """
    if unknown := set(columns) - set(COLUMN_TYPES):
        raise DeclarationError(f"unknown column types {sorted(unknown)}", todo=f"Known are {', '.join(COLUMN_TYPES)}.")
    files = data_files(paths)
    compressions = [_compression(file) for file in files]
    if header:
        _compare_headers(files, compressions)
    decoder = _Decoder(tuple(columns), int(header), delimiter, _record_defaults(columns, defaults))
    named = tf.data.Dataset.from_tensor_slices(([str(file) for file in files], compressions))
    blocks = named.flat_map(
        lambda name, compression: (
            tf.data.TextLineDataset(name, compression, buffer_size=_BUFFER_BYTES)
            .skip(int(header))
            .batch(_BLOCK_ROWS)
            .enumerate()
            .map(lambda number, lines: (name, number, lines))
        )
    )
    return blocks.map(decoder.in_graph, tf.data.AUTOTUNE).rebatch(batch_rows).prefetch(tf.data.AUTOTUNE)


def _compression(file: Path) -> str:
    with file.open("rb") as opened:
        return compression_of(opened.read(HEAD_BYTES), file.name)


def _record_defaults(columns: Sequence[str], defaults: Sequence[Any] | None) -> list[tf.Tensor]:
    if defaults is None:
        return [tf.constant([], dtype=kind) for kind in columns]
    if len(defaults) != len(columns):
        raise DeclarationError(f"{len(defaults)} defaults for {len(columns)} columns", todo="Give one for each.")
    return [tf.constant([value], dtype=kind) for value, kind in zip(defaults, columns, strict=True)]


def _compare_headers(files: Sequence[Path], compressions: Sequence[str]) -> None:
    first = b""
    for file, compression in zip(files, compressions, strict=True):
        with tf.io.gfile.GFile(str(file), "rb") as plain:
            line = plain.readline() if not compression else _first_line(file, compression)
        line = line.removeprefix(_BOM).strip()
        first = first or line
        if line != first:
            raise InputError(
                f"{file}:1:1: the header is {line.decode(errors='replace')}, that of {files[0]} is"
                f" {first.decode(errors='replace')}; columns are read by position"
            )


def _first_line(file: Path, compression: str) -> bytes:
    lines = tf.data.TextLineDataset(str(file), compression).take(1)
    return next((bytes(line) for line in lines.as_numpy_iterator()), b"")


@dataclass(frozen=True)
class _Decoder:
    """Decodes blocks of lines, and finds the row at fault in one that TensorFlow refuses."""

    columns: tuple[str, ...]
    header_lines: int
    delimiter: str
    defaults: list[tf.Tensor]

    def in_graph(self, name: tf.Tensor, number: tf.Tensor, lines: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the columns of a block."""
        decoded = tf.py_function(self._decode, [name, number, lines], list(self.columns))
        for tensor in decoded:
            tensor.set_shape([None])
        return tuple(decoded)

    def _decode(self, name: tf.Tensor, number: tf.Tensor, lines: tf.Tensor) -> list[tf.Tensor]:
        first = int(number.numpy()) * _BLOCK_ROWS
        if first == 0 and not self.header_lines and lines[0].numpy().startswith(_BOM):
            lines = tf.constant([lines[0].numpy().removeprefix(_BOM), *lines.numpy().tolist()[1:]])
        try:
            return self._columns(lines)
        except tf.errors.InvalidArgumentError:
            texts: list[bytes] = lines.numpy().tolist()
            try:
                return self._columns(tf.constant([text for text in texts if text], tf.string))
            except tf.errors.InvalidArgumentError as error:
                why = self._first_problem(texts, first + self.header_lines + 1) or f": {error.message}"
                text = f"{name.numpy().decode()}{why}"
                raise ValueError(text) from None  # TensorFlow makes an InvalidArgumentError of it, with all causes

    def _columns(self, lines: tf.Tensor) -> list[tf.Tensor]:
        found: list[tf.Tensor] = tf.io.decode_csv(lines, self.defaults, field_delim=self.delimiter)
        return found

    def _first_problem(self, texts: Sequence[bytes], line_number: int) -> str:
        """Return ``:line:column: why`` of the first row that is wrong; empty if none is found."""
        for number, raw in enumerate(texts, line_number):
            if (nul := raw.find(b"\0")) >= 0:
                return f":{number}:{nul + 1}: NUL bytes, as a lost block or a sparse copy leaves them"
            text = raw.decode(errors="replace")
            if text and (why := self._problem(text)):
                return f":{number}:{why}"
        return ""

    def _problem(self, text: str) -> str:
        try:
            row = parse_row(text, self.delimiter, lambda: None)
        except BadRowError as error:
            return f"{error.column}: {error} in its line"
        count = len(self.columns)
        if len(row) != count:
            return f"1: {len(row)} columns, {count} declared{hint(text, self.delimiter, count)}"
        for one, kind, default in zip(row, self.columns, self.defaults, strict=True):
            if not one.text and not default.shape[0]:
                return f"{one.column}: the field is empty and its column has no default"
            if why := why_not(one.text, kind):
                return f"{one.column}: {why}{hint(text, self.delimiter, count)}"
        return ""
