"""Bytes of a safetensors file as a torch tensor, mapped and not copied. Imports torch; loaded on first use."""

import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from docs_sim.checkpoint.file_state import FileState
from docs_sim.checkpoint.header import TORCH_DTYPES, TensorHeader
from docs_sim.errors import InputError


def map_tensor(path: Path, header: TensorHeader, state: FileState | None, begin: int, end: int) -> Tensor:
    """Entries [begin, end) of the first dimension of the tensor that ``header`` describes, as ``map_bytes``."""
    shape, first, last = header.entries(begin, end)
    content = map_bytes(path, state, first, last)
    return content.view(getattr(torch, TORCH_DTYPES[header.dtype])).view(shape)


def map_bytes(path: Path, state: FileState | None, begin: int, end: int) -> Tensor:
    """Bytes [begin, end) of a file, backed by the page cache; writing to them changes memory, not the file.

    Only their pages are mapped: a private mapping of a whole file larger than memory is refused by Linux, and the
    address space is given back with the tensor.

    Raises:
        InputError: if the file is not in ``state`` (None: any), or cannot be read.
    """
    if begin == end:
        return torch.empty(0, dtype=torch.uint8)
    page = begin - begin % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb") as file:
            if state is not None:
                state.check(os.fstat(file.fileno()), path)
            mapped = mmap.mmap(file.fileno(), end - page, access=mmap.ACCESS_COPY, offset=page)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return torch.frombuffer(mapped, dtype=torch.uint8, count=end - begin, offset=begin - page)
