"""Read and write TensorFlow's checkpoint format (tensor_bundle, "V2") without TensorFlow.

A checkpoint ``prefix`` is ``prefix.index`` (a table of entries) and ``prefix.data-NNNNN-of-NNNNN`` (shards of raw
tensors). Source of the format: tensorflow/core/util/tensor_bundle/tensor_bundle.cc. Every byte that is handed out
has been checked; anything wrong is a :class:`CheckpointError` that names file and tensor.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from google.protobuf.message import DecodeError

from airflow_tf.core.checkpoint.dtypes import DTYPES, Kind
from airflow_tf.core.checkpoint.output import FlushedFile
from airflow_tf.core.checkpoint.table import read_table, write_table
from airflow_tf.core.checkpoint.wire import MalformedError, extend_crc, get_varint, mask, put_varint
from airflow_tf.core.crc32c import combine
from airflow_tf.core.descriptors import message_class
from airflow_tf.core.durable import sync_folder
from airflow_tf.core.errors import CheckpointError

CHUNK_BYTES = 2**19
"""What is checked and added while it is in the processor's cache: with 4 MiB averaging takes twice the CPU time."""
_HEADER_KEY = b""
_FORMAT_VERSION = 1
_UINT32_MAX = 2**32 - 1


def _message(name: str) -> Any:  # noqa: ANN401 - generated class
    return message_class(__package__, "bundle.fds", f"tensorflow.{name}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a checkpoint: type, shape and place; ``crc32c`` is masked, as stored.

    A variable that was partitioned has one entry with ``slices`` (serialized, in order) and no data of its own, and
    one entry per slice under a binary key.
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[bytes, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def kind(self) -> Kind:
        """What the elements are."""
        return DTYPES[self.dtype].kind


def key_text(key: bytes) -> str:
    """Return a tensor's key for people; a slice of a partitioned variable has a binary one."""
    if not key.startswith(b"\0"):
        return key.decode("utf-8", "backslashreplace")
    name, _, extent = key[1:].partition(b"\0\1")
    return f"{name.decode('utf-8', 'backslashreplace')} slice {extent.hex()}"


class BundleReader:
    """Reads one checkpoint. Opening it checks the index and that every shard is there in full length.

    While it is open the index is locked (shared), so that retention leaves the checkpoint alone.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._files = ExitStack()
        self._shards: dict[int, int] = {}
        try:
            table = self._read_index()
            self.shard_count = self._read_header(table.pop(_HEADER_KEY, None))
            self.entries = {key: self._read_entry(key, value) for key, value in table.items()}
            self._open_shards()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

    def chunks(self, key: bytes) -> Iterator[bytes]:
        """Yield a tensor's bytes, at most :data:`CHUNK_BYTES` at a time for types of fixed size.

        :raises CheckpointError: at the end, if the checksum does not match what was read.
        """
        entry = self.entries[key]
        if entry.kind in {Kind.STRING, Kind.VARIANT}:
            data = b"".join(self._pieces(entry))
            crc = self._crc_of(key, entry, data)
            self._compare(key, entry, crc)
            yield data
            return
        crc = 0
        for piece in self._pieces(entry):
            crc = extend_crc(crc, piece)
            yield piece
        if not entry.slices:
            self._compare(key, entry, crc)

    def read(self, key: bytes) -> bytes:
        """Return a tensor's bytes, checked."""
        return b"".join(self.chunks(key))

    def strings(self, key: bytes) -> list[bytes]:
        """Return the elements of a string tensor."""
        entry, data = self.entries[key], self.read(key)
        lengths, position = _string_lengths(data, entry.elements)
        position += 4  # checksum of the lengths
        result = []
        for length in lengths:
            result.append(data[position : position + length])
            position += length
        return result

    def _pieces(self, entry: Entry) -> Iterator[bytes]:
        """Yield the data in pieces of :data:`CHUNK_BYTES`, so that those of several checkpoints line up."""
        end = entry.offset + entry.size
        for start in range(entry.offset, end, CHUNK_BYTES):
            length = min(CHUNK_BYTES, end - start)
            piece = b""
            while len(piece) < length:
                try:
                    more = os.pread(self._shards[entry.shard], length - len(piece), start + len(piece))
                except OSError as error:
                    raise self._broken(f"shard {entry.shard} cannot be read: {error.strerror}") from error
                if not more:
                    raise self._broken(f"shard {entry.shard} became shorter while it was read")
                piece += more
            yield piece

    def _compare(self, key: bytes, entry: Entry, crc: int) -> None:
        if mask(crc) != entry.crc32c:
            raise self._broken(f"the checksum of {key_text(key)!r} does not match its data")

    def _crc_of(self, key: bytes, entry: Entry, data: bytes) -> int:
        try:
            return _string_crc(data, entry.elements) if entry.kind is Kind.STRING else _variant_crc(data)
        except MalformedError as error:
            raise self._broken(f"{key_text(key)!r} is malformed: {error}") from error

    def _broken(self, why: str) -> CheckpointError:
        return CheckpointError(f"checkpoint {self.prefix} is damaged", why, "Use another checkpoint of the run.")

    def _read_index(self) -> dict[bytes, bytes]:
        path = Path(f"{self.prefix}.index")
        try:
            file = self._files.enter_context(path.open("rb"))
            with contextlib.suppress(OSError):  # a file system without locks; nobody can take the exclusive one either
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return read_table(file.read())
        except FileNotFoundError as error:
            raise CheckpointError(
                f"checkpoint {self.prefix} is missing", f"there is no {path.name}", "Give the prefix, without .index."
            ) from error
        except OSError as error:
            raise self._broken(f"{path.name} cannot be read: {error.strerror}") from error
        except MalformedError as error:
            raise self._broken(f"{path.name}: {error}") from error

    def _read_header(self, data: bytes | None) -> int:
        try:
            header = _message("BundleHeaderProto").FromString(data or b"")
        except DecodeError as error:
            raise self._broken("the header of the index is malformed") from error
        if header.num_shards < 1:
            raise self._broken("the index has no header")
        if header.endianness != 0 or header.version.min_consumer > _FORMAT_VERSION:
            raise self._broken("it is big-endian, or of a newer format version")
        return int(header.num_shards)

    def _read_entry(self, key: bytes, data: bytes) -> Entry:
        try:
            proto = _message("BundleEntryProto").FromString(data)
        except DecodeError as error:
            raise self._broken(f"the entry of {key_text(key)!r} is malformed") from error
        shape = tuple(dim.size for dim in proto.shape.dim)
        slices = tuple(item.SerializeToString(deterministic=True) for item in proto.slices)
        entry = Entry(proto.dtype, shape, proto.shard_id, proto.offset, proto.size, proto.crc32c, slices)
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            raise self._broken(f"{key_text(key)!r} has the unknown type number {entry.dtype}")
        expected = None if dtype.size is None or slices else entry.elements * dtype.size
        if min((*shape, entry.offset, entry.size)) < 0 or not 0 <= entry.shard < self.shard_count:
            raise self._broken(f"the entry of {key_text(key)!r} has an impossible shape or place")
        if expected is not None and expected != entry.size:
            raise self._broken(f"{key_text(key)!r} has {entry.size} bytes instead of {expected}")
        return entry

    def _open_shards(self) -> None:
        needed: dict[int, int] = {0: 0} if not self.entries else {}
        for entry in self.entries.values():
            needed[entry.shard] = max(needed.get(entry.shard, 0), entry.offset + entry.size)
        for shard, length in sorted(needed.items()):
            path = Path(shard_path(self.prefix, shard, self.shard_count))
            try:
                file = self._files.enter_context(path.open("rb", buffering=0))
                actual = os.fstat(file.fileno()).st_size
            except FileNotFoundError as error:
                raise self._incomplete(f"{path.name} is missing") from error
            except OSError as error:
                raise self._broken(f"{path.name} cannot be read: {error.strerror}") from error
            if actual < length:
                raise self._incomplete(f"{path.name} has {actual} bytes of {length}")
            self._shards[shard] = file.fileno()

    def _incomplete(self, why: str) -> CheckpointError:
        return CheckpointError(f"checkpoint {self.prefix} is incomplete", why, "Use another checkpoint of the run.")


def shard_path(prefix: str, shard: int, count: int) -> str:
    """Return the path of a data shard."""
    return f"{prefix}.data-{shard:05d}-of-{count:05d}"


def _string_lengths(data: bytes, count: int) -> tuple[list[int], int]:
    if count > len(data):
        raise MalformedError("it is too short for its shape")
    lengths, position = [], 0
    for _ in range(count):
        length, position = get_varint(data, position, len(data))
        lengths.append(length)
    return lengths, position


def _string_crc(data: bytes, count: int) -> int:
    """Check a string tensor's lengths and return the CRC of the tensor (varints count as fixed-width integers)."""
    lengths, position = _string_lengths(data, count)
    if position + 4 + sum(lengths) != len(data):
        raise MalformedError("its lengths do not add up")
    crc = extend_crc(0, b"".join(struct.pack("<I" if n <= _UINT32_MAX else "<Q", n) for n in lengths))
    stored = data[position : position + 4]
    if struct.pack("<I", mask(crc)) != stored:
        raise MalformedError("the checksum of its lengths does not match")
    return extend_crc(extend_crc(crc, stored), data[position + 4 :])


def encode_string(value: bytes) -> tuple[bytes, int]:
    """Return a string tensor of one element as it is stored, and its stored checksum."""
    length = put_varint(len(value))
    crc = extend_crc(0, struct.pack("<I" if len(value) <= _UINT32_MAX else "<Q", len(value)))
    data = length + struct.pack("<I", mask(crc)) + value
    return data, mask(_string_crc(data, 1))


def _variant_crc(data: bytes) -> int:
    """Return the CRC of a variant tensor: per element its length as uint64, its bytes and its own checksum."""
    crc, position = 0, 0
    while position < len(data):
        length, position = get_varint(data, position, len(data))
        after = position + length + 4
        if after > len(data):
            raise MalformedError("an element reaches beyond its end")
        crc = extend_crc(extend_crc(crc, struct.pack("<Q", length)), data[position : position + length])
        crc = extend_crc(crc, data[after - 4 : after])
        position = after
    return crc


class BundleWriter:
    """Writes one checkpoint with one shard; nothing appears under its name before :meth:`commit`.

    The same tensors give the same bytes. Add tensors in any order; the index is sorted.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.entries: dict[bytes, Entry] = {}
        self._data = Path(shard_path(prefix, 0, 1))
        self._index = Path(f"{prefix}.index")
        self._data.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = [path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in (self._data, self._index)]
        self._file = FlushedFile(self._temporary[0])
        self._crc32c = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        finally:  # on a full disk the close fails as the write did
            for path in self._temporary:
                path.unlink(missing_ok=True)

    @property
    def data_file(self) -> Path:
        """Where the data is until :meth:`commit`, which renames it."""
        return self._temporary[0]

    @property
    def data(self) -> dict[str, int]:
        """Size in bytes and CRC32C of the data that was added, as it was before any disk had it."""
        return {"size": self._file.size, "crc32c": self._crc32c}

    def add(self, key: bytes, like: Entry, chunks: Iterable[bytes], crc32c: int | None = None) -> None:
        """Append a tensor of the type, shape and slices of ``like``.

        :param crc32c: the stored (masked) checksum, needed where it is not simply that of the bytes (strings,
            variants); None computes it.
        """
        offset, crc = self._file.size, 0
        for chunk in chunks:
            crc = extend_crc(crc, chunk)
            self._file.write(chunk)
        self._crc32c = combine(self._crc32c, crc, self._file.size - offset)
        stored = mask(crc) if crc32c is None else crc32c
        self.entries[key] = Entry(like.dtype, like.shape, 0, offset, self._file.size - offset, stored, like.slices)

    def commit(self) -> int:
        """Make the checkpoint appear, the index last, all of it on disk; return its bytes."""
        self._file.sync()
        index = write_table(self._table())
        with self._temporary[1].open("wb") as file:
            file.write(index)
            file.flush()
            os.fsync(file.fileno())
        self._index.unlink(missing_ok=True)  # an old index must never describe the new data
        for temporary, path in zip(self._temporary, (self._data, self._index), strict=True):
            temporary.replace(path)
        sync_folder(self._data.parent)
        return self._file.size + len(index)

    def _table(self) -> Iterator[tuple[bytes, bytes]]:
        header = _message("BundleHeaderProto")(num_shards=1)
        header.version.producer = _FORMAT_VERSION
        yield _HEADER_KEY, header.SerializeToString(deterministic=True)
        for key, entry in sorted(self.entries.items()):
            proto = _message("BundleEntryProto")(
                dtype=entry.dtype, shard_id=0, offset=entry.offset, size=entry.size, crc32c=entry.crc32c
            )
            for size in entry.shape:
                proto.shape.dim.add(size=size)
            proto.shape.SetInParent()
            for item in entry.slices:
                proto.slices.add().ParseFromString(item)
            yield key, proto.SerializeToString(deterministic=True)
