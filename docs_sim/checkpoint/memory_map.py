"""Bytes of a safetensors file as a torch tensor, mapped and not copied. Imports torch; loaded on first use."""

import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from docs_sim.checkpoint.file_state import FileState
from docs_sim.checkpoint.header import FLOATS, TensorHeader
from docs_sim.errors import InputError


def map_tensor(path: Path, header: TensorHeader, state: FileState) -> Tensor:
    """The float tensor that ``header`` describes, backed by the page cache; writing to it changes memory, not the file.

    Only the pages of this tensor are mapped: a private mapping of a whole file larger than memory is refused by
    Linux, and the address space is given back with the tensor.

    Raises:
        InputError: if the file is not in the state in which its header was read, or cannot be read.
    """
    dtype = getattr(torch, FLOATS[header.dtype])
    if header.begin == header.end:
        return torch.empty(header.shape, dtype=dtype)
    page = header.begin - header.begin % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb") as file:
            state.check(os.fstat(file.fileno()), path)
            mapped = mmap.mmap(file.fileno(), header.end - page, access=mmap.ACCESS_COPY, offset=page)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    count = 1
    for size in header.shape:
        count *= size
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=header.begin - page).view(header.shape)
