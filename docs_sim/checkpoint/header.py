"""The header of a safetensors file, read as untrusted bytes. No tensor data is touched and torch is not imported."""

import json
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from docs_sim.checkpoint.file_state import FileState
from docs_sim.errors import InputError, shown

# The same limit as the safetensors library: a longer header is an attack, or not a header.
MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
_MAX_DIMENSIONS = 64  # what torch allows
_LFS_POINTER = b"version https://git-lfs"

# Storage type -> bits of an element.
DTYPES: dict[str, int] = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
    "C64": 64,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
}
# The storage types whose numbers are the weights themselves -> name of the torch dtype.
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Those that torch can hold, for what has to be unpacked or scaled.
TORCH_DTYPES = FLOATS | {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True)
class TensorHeader:
    """Where one tensor lies: its storage type, shape, and bytes [begin, end) counted from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def entries(self, begin: int, end: int) -> tuple[tuple[int, ...], int, int]:
        """Shape and place in the file of entries [begin, end) of the first dimension; all of what has none."""
        if not self.shape:
            return (), self.begin, self.end
        entry = (self.end - self.begin) // max(1, self.shape[0])
        return (end - begin, *self.shape[1:]), self.begin + begin * entry, self.begin + end * entry


def read_header(path: Path) -> tuple[dict[str, TensorHeader], FileState]:
    """The tensors of a safetensors file, in the order of its header, and the version of the file.

    Raises:
        InputError: naming the file, if it cannot be read or its header is not valid.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            start = file.read(max(LENGTH_BYTES, len(_LFS_POINTER)))
            header_bytes = _header_length(start, status.st_size, path)
            file.seek(LENGTH_BYTES)
            header = _parse(file.read(header_bytes), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    data_start = LENGTH_BYTES + header_bytes
    tensors = {name: _tensor(name, entry, data_start, path) for name, entry in header.items()}
    _check_layout(tensors, data_start, status.st_size, path)
    return tensors, FileState.of(status)


def check_holds_weights(start: bytes, path: Path) -> None:
    """Whatever the format: that a file with this beginning was downloaded at all.

    Raises:
        InputError: if it is empty or a Git LFS pointer.
    """
    if not start:
        raise InputError(f"{path}: the file is empty; download it again")
    if start.startswith(_LFS_POINTER):
        raise InputError(f"{path}: is a Git LFS pointer, not the weights; run `git lfs pull` in that repository")


def _header_length(start: bytes, file_bytes: int, path: Path) -> int:
    check_holds_weights(start, path)
    if len(start) < LENGTH_BYTES:
        raise InputError(f"{path}: is not a safetensors file (only {file_bytes} bytes)")
    length = int(struct.unpack("<Q", start[:LENGTH_BYTES])[0])
    if length > MAX_HEADER_BYTES:
        raise InputError(f"{path}: is not a safetensors file (a header of {length:,} bytes, over {MAX_HEADER_BYTES:,})")
    if LENGTH_BYTES + length > file_bytes:
        raise InputError(
            f"{path}: is cut short in its header ({file_bytes:,} of {LENGTH_BYTES + length:,} bytes); download it again"
        )
    return length


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: its header is not valid ({error})") from error
    if not isinstance(header, dict):
        raise InputError(f"{path}: its header is not valid (a JSON {type(header).__name__}, not an object)")
    header.pop("__metadata__", None)
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        if name in mapping:
            raise ValueError(f"{shown(name)} occurs twice")
        mapping[name] = value
    return mapping


def _tensor(name: str, entry: object, data_start: int, path: Path) -> TensorHeader:
    fault = f"{path}: the header entry of tensor {shown(name)} is not valid"
    if not isinstance(entry, dict):
        raise InputError(fault)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"{fault}: unknown dtype {shown(dtype)}")
    if not _naturals(shape) or not _naturals(offsets):
        raise InputError(f"{fault}: shape {shown(shape)}, data_offsets {shown(offsets)}")
    if len(shape) > _MAX_DIMENSIONS or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InputError(f"{fault}: shape {shown(shape)}, data_offsets {shown(offsets)}")
    elements = 1
    for size in shape:
        elements *= size
    if elements * DTYPES[dtype] != (offsets[1] - offsets[0]) * 8:
        raise InputError(f"{fault}: shape {shown(shape)} of {dtype} does not fill {offsets[1] - offsets[0]} bytes")
    return TensorHeader(dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _naturals(values: object) -> TypeGuard[list[int]]:
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        return False
    return not values or (min(values) >= 0 and max(values) < 2**63)


def _check_layout(tensors: dict[str, TensorHeader], data_start: int, file_bytes: int, path: Path) -> None:
    """The tensors must follow each other without overlap or gap, to the end of the file."""
    position, previous = data_start, ""
    for name, tensor in _by_position(tensors.items()):
        if tensor.begin != position:
            fault = "overlap" if tensor.begin < position else "leave a gap"
            between = f"tensors {shown(previous)} and {shown(name)}" if previous else f"the header and {shown(name)}"
            raise InputError(f"{path}: its header is not valid ({between} {fault})")
        position, previous = tensor.end, name
    if position > file_bytes:
        raise InputError(f"{path}: is cut short ({file_bytes:,} of {position:,} bytes); download it again")
    if position < file_bytes:
        raise InputError(f"{path}: has {file_bytes - position:,} bytes after the last tensor; download it again")


def _by_position(tensors: Iterable[tuple[str, TensorHeader]]) -> list[tuple[str, TensorHeader]]:
    return sorted(tensors, key=lambda item: (item[1].begin, item[1].end))
