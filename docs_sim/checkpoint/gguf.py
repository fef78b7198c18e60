"""The tensors of a GGUF file, through the gguf package; quantized blocks are dequantized to float32 when read."""

import struct
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from docs_sim.checkpoint.file_state import FileState
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError, MissingExtraError, shown

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType
    from torch import Tensor

_MAGIC = b"GGUF"
# Value types of the GGUF specification -> bytes of a value.
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_MAX_DEPTH, _MAX_ELEMENTS = 4, 10_000_000


def read_gguf_tensors(path: Path) -> tuple[dict[str, StoredTensor], str | None]:
    """The tensors of a GGUF file by name, and its architecture.

    Raises:
        MissingExtraError: if the gguf package is not installed.
        InputError: naming the file, if it cannot be read or is not valid.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtraError("gguf", f"reading {path.name}") from error
    _check_start(path)
    try:
        state = FileState.of(path.stat())
        _check_fields(path)
        reader = GGUFReader(path, "c")  # copy on write: a read-only map would end Python when a matrix is changed
        _check_layout(reader)
        tensors = {tensor.name: _stored(tensor, path, state) for tensor in reader.tensors}
        architecture, parts = (reader.get_field(key) for key in ("general.architecture", "split.count"))
        name = None if architecture is None else str(architecture.contents())
        count = 1 if parts is None else int(parts.contents())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # the parser meets hostile bytes with whatever exception they happen to cause
        raise InputError(f"{path}: is cut short or not a valid GGUF file ({error}); download it again") from error
    if count > 1:
        raise InputError(f"{path}: is one of {count} parts; join them with `llama-gguf-split --merge` first")
    return tensors, name


def _check_start(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if not start:
        raise InputError(f"{path}: the file is empty; download it again")
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"{path}: is a Git LFS pointer, not the weights; run `git lfs pull` in that repository")
    if not start.startswith(_MAGIC):
        raise InputError(f"{path}: is not a GGUF file")
    if start[4:6] == b"\0\0":  # the version, a small number, begins with its high bytes
        raise InputError(f"{path}: is a GGUF file for big-endian machines, which is not read; use the usual one")


def _check_fields(path: Path) -> None:
    """Walk the key-value section: the gguf package believes every length in it, and would read for ever.

    Raises:
        ValueError: if a length leads beyond the end of the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        _, _, _, fields = struct.unpack("<4sIQQ", file.read(24))
        for _ in range(fields):
            _skip_string(file, size)
            _skip_value(file, size, *struct.unpack("<I", file.read(4)))


def _skip_string(file: BinaryIO, size: int) -> None:
    (length,) = struct.unpack("<Q", file.read(8))
    _skip(file, length, size)


def _skip_value(file: BinaryIO, size: int, kind: int, depth: int = 0) -> None:
    if kind in _SCALAR_BYTES:
        _skip(file, _SCALAR_BYTES[kind], size)
    elif kind == _STRING:
        _skip_string(file, size)
    elif kind == _ARRAY and depth < _MAX_DEPTH:
        element, count = struct.unpack("<IQ", file.read(12))
        if count > _MAX_ELEMENTS:
            raise ValueError(f"an array of {count:,} elements")
        if element in _SCALAR_BYTES:
            _skip(file, _SCALAR_BYTES[element] * count, size)
        else:
            for _ in range(count):
                _skip_value(file, size, element, depth + 1)
    else:
        raise ValueError(f"a value of type {kind}")


def _skip(file: BinaryIO, length: int, size: int) -> None:
    if file.tell() + length > size:
        raise ValueError("a value beyond the end of the file")
    file.seek(length, 1)


def _check_layout(reader: Any) -> None:
    """The gguf package believes every offset.

    Raises:
        ValueError: if a tensor is not aligned or lies over another.
    """
    end, previous = reader.data_offset, ""
    for tensor in sorted(reader.tensors, key=lambda tensor: int(tensor.data_offset)):
        if tensor.data_offset < end:
            raise ValueError(f"tensors {shown(previous)} and {shown(tensor.name)} overlap")
        if (tensor.data_offset - reader.data_offset) % reader.alignment:
            raise ValueError(f"tensor {shown(tensor.name)} is not aligned")
        end, previous = int(tensor.data_offset) + int(tensor.n_bytes), tensor.name


def _stored(tensor: Any, path: Path, state: FileState) -> StoredTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))  # GGUF counts dimensions from the innermost
    kind = tensor.tensor_type
    refusal = None if _readable(kind) else f"stored as {kind.name}, which the gguf package cannot dequantize"
    read = partial(_read, path, tensor, shape, state)
    return StoredTensor(tensor.name, shape, kind.name, path, int(tensor.n_bytes), refusal, read)


@cache
def _readable(kind: "GGMLQuantizationType") -> bool:
    """Whether the gguf package can dequantize a kind of block, which only a block tells."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    if kind == GGMLQuantizationType.F64:
        return True
    try:
        with np.errstate(all="ignore"):
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _read(path: Path, tensor: Any, shape: tuple[int, ...], state: FileState, begin: int, end: int) -> "Tensor":
    import torch
    from gguf import GGMLQuantizationType, dequantize

    try:
        state.check(path.stat(), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    kinds = GGMLQuantizationType
    data = tensor.data.reshape(shape[0], -1)[begin:end]  # blocks do not reach over the innermost dimension
    wanted = (end - begin, *shape[1:])
    if tensor.tensor_type == kinds.BF16:
        return torch.from_numpy(data).view(torch.bfloat16).view(wanted)
    if tensor.tensor_type in (kinds.F64, kinds.F32, kinds.F16):
        return torch.from_numpy(data).view(wanted)
    blocks = tensor.data.reshape(shape[0], -1, tensor.data.shape[-1])[begin:end] if len(shape) > 1 else tensor.data
    return torch.from_numpy(dequantize(blocks, tensor.tensor_type)).view(wanted)
