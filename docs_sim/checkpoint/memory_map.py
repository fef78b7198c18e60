"""Bytes of a safetensors file as a torch tensor, mapped and not copied. Imports torch; loaded on first use."""

import mmap
import os
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from docs_sim.checkpoint.file_state import FileState
from docs_sim.checkpoint.header import TORCH_DTYPES, TensorHeader
from docs_sim.errors import InputError


def map_tensor(path: Path, header: TensorHeader, state: FileState, begin: int, end: int) -> Tensor:
    """Entries [begin, end) of the first dimension of the tensor that ``header`` describes, backed by the page cache.

    Writing to it changes memory, not the file. Only the pages of these entries are mapped: a private mapping of a
    whole file larger than memory is refused by Linux, and the address space is given back with the tensor.

    Raises:
        InputError: if the file is not in the state in which its header was read, or cannot be read.
    """
    dtype = getattr(torch, TORCH_DTYPES[header.dtype])
    shape = (end - begin, *header.shape[1:]) if header.shape else ()
    entry = (header.end - header.begin) // max(1, header.shape[0] if header.shape else 1)
    count = prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    first, last = header.begin + begin * entry, header.begin + end * entry
    page = first - first % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb") as file:
            state.check(os.fstat(file.fileno()), path)
            mapped = mmap.mmap(file.fileno(), last - page, access=mmap.ACCESS_COPY, offset=page)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=first - page).view(shape)
