"""The check of a staged input before devices are reserved: compression, framing of records, rows and types of CSV.

TensorFlow reads a text gzip that was cut in half as a shorter file, and its errors name neither file nor line.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import google_crc32c

from airflow_tf.core.checkpoint.wire import mask
from airflow_tf.core.codecs import HEAD_BYTES, compression_of
from airflow_tf.core.csv_rows import COLUMN_TYPES, BadRowError, Field, hint, inferred, parse_row, why_not
from airflow_tf.core.errors import DeclarationError, InputError
from airflow_tf.storage.base import CHUNK_BYTES
from airflow_tf.storage.records import CRC, FRAME_BYTES, data_length

FORMATS = ("auto", "csv", "records", "any")

_SAMPLE = 1000
_MOST_PROBLEMS = 20
_LONGEST_LINE_BYTES = 16 << 20
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InputCheck:
    """What is expected of an input.

    :param format: ``csv``; ``records`` (TFRecord); ``any``: compression only; ``auto``: told by content and name.
    :param columns: types of the columns; None: as many as the first row has, numbers where its first rows have some.
    :param header: the first line of every file names the columns, the same in all.
    :param full: every row and record; else the first thousand of each file. Compressed files are read to their end
        and the framing of records is followed in both cases.
    """

    format: str = "auto"
    columns: tuple[str, ...] | None = None
    header: bool = False
    delimiter: str = ","
    encoding: str = "utf-8"
    full: bool = False

    @classmethod
    def of(cls, values: dict[str, Any]) -> InputCheck:
        """Build it from a declaration.

        :raises DeclarationError: if a value is none of those that are known.
        """
        check = cls(**values | ({"columns": tuple(values["columns"])} if values.get("columns") else {}))
        if check.format not in FORMATS:
            raise DeclarationError(f"check.format is {check.format!r}", todo=f"Write one of {', '.join(FORMATS)}.")
        if unknown := set(check.columns or ()) - set(COLUMN_TYPES):
            raise DeclarationError(
                f"check.columns has {', '.join(sorted(unknown))}", todo=f"Known types are {', '.join(COLUMN_TYPES)}."
            )
        if len(check.delimiter) != 1 or check.delimiter in '"\r\n':
            raise DeclarationError(f"check.delimiter is {check.delimiter!r}", todo="Write one character, like , or ;.")
        if not _is_by_bytes(check.encoding):
            raise DeclarationError(
                f"check.encoding is {check.encoding!r}",
                "it is no encoding in which a line end is one byte",
                "Write one like utf-8 or latin-1.",
            )
        return check


def _is_by_bytes(encoding: str) -> bool:
    """Tell whether lines of text in this encoding can be told by their bytes, as TensorFlow does."""
    try:
        return "\n".encode(encoding) == b"\n"
    except LookupError:
        return False


@dataclass(slots=True)
class Findings:
    """What was seen: counts, and problems as ``file:line:column: what`` (records: ``file:record:byte``)."""

    rows: int = 0
    records: int = 0
    blank_lines: int = 0
    empty_files: int = 0
    problems: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, int]:
        """Return the counts."""
        return {name: getattr(self, name) for name in ("rows", "records", "blank_lines", "empty_files")}


def check_input(folder: Path, names: Iterable[str], check: InputCheck) -> Findings:
    """Check the staged files and return what was seen.

    :raises InputError: naming the first problems.
    """
    findings = Findings()
    schema = _Schema(check)
    for name in names:
        if len(findings.problems) >= _MOST_PROBLEMS:
            break
        try:
            _check_file(folder / name, name, check, schema, findings)
        except InputError as error:
            findings.problems.append(str(error))
        except (OSError, EOFError, zlib.error) as error:
            findings.problems.append(f"{name}: the compressed file is damaged or cut: {error}")
    if findings.problems:
        raise InputError(
            f"{len(findings.problems)} problems in the input",
            "\n".join(["", *findings.problems[:_MOST_PROBLEMS]]),
            "Correct the files, or the check that is declared for them.",
        )
    return findings


def _check_file(path: Path, name: str, check: InputCheck, schema: _Schema, findings: Findings) -> None:
    with path.open("rb") as raw:
        compression = compression_of(raw.read(HEAD_BYTES), name)
        raw.seek(0)
        file = _decoded(raw, compression)
        if not file.peek(1):
            findings.empty_files += 1
            return
        kind = check.format if check.format != "auto" else _told(file.peek(FRAME_BYTES), name)
        if kind == "records":
            _Records(file, name, findings, full=check.full).check()
        elif kind == "csv":
            _CsvFile(file, name, check, schema, findings).check()
        if compression:
            while file.read(CHUNK_BYTES):  # its end tells whether it is whole
                pass


def _decoded(raw: io.BufferedReader, compression: str) -> io.BufferedReader:
    if compression == "GZIP":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if compression == "ZLIB":
        return io.BufferedReader(_Inflating(raw))
    return raw


class _Inflating(io.RawIOBase):
    """A zlib stream, decompressed."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._inflate, self._rest = raw, zlib.decompressobj(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 -- a writable buffer
        while not self._rest and not self._inflate.eof:
            data = self._raw.read(CHUNK_BYTES)
            if not data:
                raise EOFError("it ends before the end of its stream")
            self._rest = self._inflate.decompress(data)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _told(head: bytes, name: str) -> str:
    if data_length(head):
        return "records"
    return "csv" if ".csv" in name.lower() else "any"


class _Records:
    """Follows the framing of a TFRecord file."""

    def __init__(self, file: io.BufferedReader, name: str, findings: Findings, *, full: bool) -> None:
        self._file, self._name, self._findings, self._full = file, name, findings, full
        self._number = self._offset = 0

    def check(self) -> None:
        while head := self._file.read(FRAME_BYTES):
            if len(head) < FRAME_BYTES:
                raise self._problem("the header is cut")
            length = data_length(head)
            if length is None:
                raise self._problem("the header is damaged, or this is no TFRecord file")
            self._check_data(length)
            self._offset += FRAME_BYTES + length + CRC.size
            self._number += 1
            self._findings.records += 1

    def _check_data(self, length: int) -> None:
        crc32c, left = 0, length
        while left:
            chunk = self._file.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise self._problem("the record is cut")
            if self._full or self._number < _SAMPLE:
                crc32c = google_crc32c.extend(crc32c, chunk)
            left -= len(chunk)
        tail = self._file.read(CRC.size)
        if len(tail) < CRC.size:
            raise self._problem("the record is cut")
        if (self._full or self._number < _SAMPLE) and CRC.unpack(tail)[0] != mask(crc32c):
            raise self._problem("the record's bytes do not have its checksum")

    def _problem(self, why: str) -> InputError:
        return InputError(f"{self._name}:{self._number}:{self._offset}: {why} (record {self._number})")


class _Schema:
    """Number, types and names of columns over all files."""

    def __init__(self, check: InputCheck) -> None:
        self.types = list(check.columns) if check.columns else None
        self.is_declared = check.columns is not None
        self.header: list[str] | None = None
        self.header_file = ""
        self.rows = 0

    def problems(self, row: list[Field], line: str, delimiter: str) -> Iterator[tuple[int, str]]:
        """Yield column and text of what is wrong with a row."""
        if self.types is not None and len(row) != len(self.types):
            said = "declared" if self.is_declared else "in the first row"
            yield 1, f"{len(row)} columns, {len(self.types)} {said}{hint(line, delimiter, len(self.types))}"
            return
        if not self.is_declared and self.rows < _SAMPLE:
            self.types = inferred(row, self.types)
        self.rows += 1
        for one, kind in zip(row, self.types or (), strict=True):
            if why := why_not(one.text, kind):
                yield one.column, why + hint(line, delimiter, len(row))


class _CsvFile:
    """Reads one CSV file row by row."""

    def __init__(
        self, file: io.BufferedReader, name: str, check: InputCheck, schema: _Schema, findings: Findings
    ) -> None:
        self._file, self._name, self._check, self._schema, self._findings = file, name, check, schema, findings
        self._line_number = self._offset = 0

    def check(self) -> None:
        start = self._file.peek(len(_UTF8_BOM))
        for bom, encoding in _BOMS.items():
            if start.startswith(bom):
                raise InputError(f"{self._name}:1:1: {encoding} text; TensorFlow reads UTF-8")
        if start.startswith(_UTF8_BOM):
            self._offset = len(self._file.read(len(_UTF8_BOM)))
        if self._check.header:
            self._check_header()
        rows = 0
        while (line := self._next()) is not None and (self._check.full or rows < _SAMPLE):
            if not line:
                self._findings.blank_lines += 1
                continue
            rows += 1
            self._check_row(line)
            if len(self._findings.problems) >= _MOST_PROBLEMS:
                return
        self._findings.rows += rows

    def _check_row(self, line: str) -> None:
        number = self._line_number
        try:
            row = parse_row(line, self._check.delimiter, self._next)
        except BadRowError as error:
            self._findings.problems.append(f"{self._name}:{number}:{error.column}: {error}")
            return
        for column, why in self._schema.problems(row, line, self._check.delimiter):
            self._findings.problems.append(f"{self._name}:{number}:{column}: {why}")

    def _check_header(self) -> None:
        line = self._next() or ""
        try:
            names = [one.text for one in parse_row(line, self._check.delimiter, self._next)]
        except BadRowError as error:
            raise InputError(f"{self._name}:1:{error.column}: {error}, in the header") from error
        schema = self._schema
        if schema.header is None:
            schema.header, schema.header_file = names, self._name
            if schema.types is not None and len(names) != len(schema.types):
                count = len(schema.types)
                seen = hint(line, self._check.delimiter, count)
                raise InputError(f"{self._name}:1:1: the header has {len(names)} columns, {count} are declared{seen}")
        elif names != schema.header:
            raise InputError(
                f"{self._name}:1:1: the header is {','.join(names)}, that of {schema.header_file} is"
                f" {','.join(schema.header)}; columns are read by position"
            )

    def _next(self) -> str | None:
        """Return the next line without its end; None at the end of the file."""
        raw = self._file.readline(_LONGEST_LINE_BYTES)
        if not raw:
            return None
        self._line_number += 1
        if len(raw) == _LONGEST_LINE_BYTES:
            raise InputError(f"{self._name}:{self._line_number}:1: the line is longer than 16 MiB")
        if (nul := raw.find(b"\0")) >= 0:
            raise InputError(
                f"{self._name}:{self._line_number}:{nul + 1}: NUL bytes from byte {self._offset + nul} on, as a lost"
                " block or a sparse copy leaves them"
            )
        self._offset += len(raw)
        try:
            return raw.decode(self._check.encoding).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._name}:{self._line_number}:{error.start + 1}: the bytes are no {self._check.encoding}"
            ) from error
