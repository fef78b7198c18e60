"""The tensors of a GGUF file, read as untrusted bytes; the gguf package dequantizes their blocks when they are read.

The header is parsed here: the package turns every word of the vocabulary into Python objects, which takes seconds, and
believes every length.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs_sim.checkpoint.file_state import FileState
from docs_sim.checkpoint.header import FLOATS, TensorHeader, check_holds_weights
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError, MissingExtraError, shown

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# Value types of the GGUF specification -> how struct reads a value.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DEPTH, _MAX_DIMENSIONS, _MAX_ELEMENTS = 4, 4, 20_000_000
_ALIGNMENT, _ARCHITECTURE, _PARTS = "general.alignment", "general.architecture", "split.count"


def read_gguf_tensors(path: Path) -> tuple[dict[str, StoredTensor], str | None]:
    """The tensors of a GGUF file by name, and its architecture.

    Raises:
        MissingExtraError: if the gguf package is not installed.
        InputError: naming the file, if it cannot be read or is not valid.
    """
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("gguf", f"reading {path.name}") from error
    try:
        with path.open("rb") as file:
            state = FileState.of(os.fstat(file.fileno()))
            _check_start(file.read(64), path)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                headers, values = _Header(content, path).parse()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: is cut short or not a valid GGUF file ({error}); download it again") from error
    parts = values.get(_PARTS, 1)
    if isinstance(parts, int) and parts > 1:
        raise InputError(f"{path}: is one of {parts} parts; join them with `llama-gguf-split --merge` first")
    architecture = values.get(_ARCHITECTURE)
    tensors = {name: _stored(name, header, path, state) for name, header in headers.items()}
    return tensors, architecture if isinstance(architecture, str) else None


def _check_start(start: bytes, path: Path) -> None:
    check_holds_weights(start, path)
    if not start.startswith(_MAGIC):
        raise InputError(f"{path}: is not a GGUF file")
    if start[4:6] == b"\0\0":  # the version, a small number, begins with its high bytes
        raise InputError(f"{path}: is a GGUF file for big-endian machines, which is not read; use the usual one")


def _unknown(path: Path, what: str, package: str) -> InputError:
    """What another download does not mend."""
    return InputError(f"{path}: {what}; update the package {package}, or convert the model anew")


class _Header:
    """Reads the header from its beginning on. Every step goes forward, and none beyond the end of the file."""

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self._content = content
        self._path = path
        self._position = len(_MAGIC)
        self._elements = 0

    def parse(self) -> tuple[dict[str, TensorHeader], dict[str, Any]]:
        """The tensors, and the few values that matter.

        Raises:
            InputError: if it is newer than what is known.
            ValueError, struct.error, KeyError: if it is not valid.
        """
        version, tensors, fields = self._take("I"), self._take("Q"), self._take("Q")
        if version not in _VERSIONS:
            read = " and ".join(map(str, _VERSIONS))
            raise _unknown(self._path, f"is of GGUF version {version}, and {read} are read", "docs-sim")
        values: dict[str, Any] = {}
        for _ in range(fields):
            key, kind = self._text(), self._take("I")
            if key in (_ALIGNMENT, _ARCHITECTURE, _PARTS):
                values[key] = self._text() if kind == _STRING else self._take(_SCALARS[kind])
            else:
                self._skip(kind)
        infos = [self._info() for _ in range(tensors)]
        return self._placed(infos, values.get(_ALIGNMENT, 32)), values

    def _take(self, form: str) -> Any:
        size = struct.calcsize(f"<{form}")
        (value,) = struct.unpack_from(f"<{form}", self._content, self._position)
        self._position += size
        return value

    def _text(self) -> str:
        length = self._take("Q")
        start = self._position
        self._advance(length)
        return self._content[start : self._position].decode("utf-8")

    def _advance(self, length: int) -> None:
        self._position += length
        if self._position > len(self._content):
            raise ValueError("a value reaches beyond the end of the file")

    def _skip(self, kind: int, depth: int = 0) -> None:
        if kind == _STRING:
            self._advance(self._take("Q"))
        elif kind != _ARRAY:
            self._advance(struct.calcsize(_SCALARS[kind]))
        elif depth >= _MAX_DEPTH:
            raise ValueError("arrays in arrays without end")
        else:
            self._skip_array(self._take("I"), self._take("Q"), depth)

    def _skip_array(self, kind: int, count: int, depth: int) -> None:
        if kind in _SCALARS:
            self._advance(struct.calcsize(_SCALARS[kind]) * count)
            return
        self._elements += count
        if self._elements > _MAX_ELEMENTS:
            raise ValueError(f"arrays of {self._elements:,} values")
        for _ in range(count):
            self._skip(kind, depth + 1)

    def _info(self) -> tuple[str, TensorHeader]:
        """Name of a tensor, and what it is, with its place counted from the start of the data."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, count = self._text(), self._take("I")
        if count > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {shown(name)} has {count} dimensions")
        inner_first = [self._take("Q") for _ in range(count)]
        number = self._take("I")
        if number not in {kind.value for kind in GGML_QUANT_SIZES}:
            raise _unknown(self._path, f"tensor {shown(name)} is of type {number}, which is not known", "gguf")
        kind = GGMLQuantizationType(number)
        block, size = GGML_QUANT_SIZES[kind]
        if inner_first and inner_first[0] % block:
            raise ValueError(f"the rows of tensor {shown(name)} are no whole blocks")
        offset = self._take("Q")
        end = offset + prod(inner_first) // block * size
        return name, TensorHeader(kind.name, tuple(reversed(inner_first)), offset, end)

    def _placed(self, infos: Sequence[tuple[str, TensorHeader]], alignment: Any) -> dict[str, TensorHeader]:
        """Where the tensors lie. They may not overlap, and must be aligned and inside the file."""
        if type(alignment) is not int or alignment <= 0:
            raise ValueError(f"an alignment of {alignment}")
        start = -(-self._position // alignment) * alignment
        placed = {name: replace(header, begin=start + header.begin, end=start + header.end) for name, header in infos}
        if len(placed) < len(infos):
            raise ValueError("a tensor name occurs twice")
        end, previous = start, ""
        for name, header in sorted(placed.items(), key=lambda item: (item[1].begin, item[1].end)):
            if header.begin < end:
                raise ValueError(f"tensors {shown(previous)} and {shown(name)} overlap")
            if (header.begin - start) % alignment:
                raise ValueError(f"tensor {shown(name)} is not aligned")
            end, previous = header.end, name
        if end > len(self._content) and placed:
            raise ValueError(f"{len(self._content):,} of {end:,} bytes")
        return placed


def _stored(name: str, header: TensorHeader, path: Path, state: FileState) -> StoredTensor:
    refusal = None if _readable(header.dtype) else f"stored as {header.dtype}, which the gguf package cannot dequantize"
    read = partial(_read, path, header, state)
    return StoredTensor(name, header.shape, header.dtype, path, header.end - header.begin, refusal, read)


@cache
def _readable(kind: str) -> bool:
    """Whether the gguf package can dequantize a kind of block, which only a block tells."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    if kind in FLOATS:
        return True
    number = GGMLQuantizationType[kind]
    try:
        with np.errstate(all="ignore"):
            dequantize(np.zeros((1, GGML_QUANT_SIZES[number][1]), dtype=np.uint8), number)
    except NotImplementedError:
        return False
    return True


def _read(path: Path, header: TensorHeader, state: FileState, begin: int, end: int) -> "Tensor":
    import numpy as np
    import torch
    from gguf import GGMLQuantizationType, dequantize

    from docs_sim.checkpoint.memory_map import map_bytes

    shape, first, last = header.entries(begin, end)
    content = map_bytes(path, state, first, last)
    if header.dtype in FLOATS:
        return content.view(getattr(torch, FLOATS[header.dtype])).view(shape)
    rows = content.numpy().reshape(prod(shape[:-1]), -1)
    with np.errstate(all="ignore"):  # what comes out as infinity is refused later, with the tensor's name
        return torch.from_numpy(dequantize(rows, GGMLQuantizationType[header.dtype])).view(shape)
