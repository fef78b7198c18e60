"""The tensors of a GGUF file, through the gguf package; quantized blocks are dequantized to float32 when read."""

import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC = b"GGUF"


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
        reader = GGUFReader(path)
        tensors = {tensor.name: _stored(tensor, path) for tensor in reader.tensors}
        architecture = reader.get_field("general.architecture")
        name = None if architecture is None else str(architecture.contents())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # the parser meets hostile bytes with whatever exception they happen to cause
        raise InputError(f"{path}: is cut short or not a valid GGUF file ({error}); download it again") from error
    if len(tensors) != len(reader.tensors):
        raise InputError(f"{path}: names a tensor twice")
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


def _stored(tensor: Any, path: Path) -> StoredTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))  # GGUF counts dimensions from the innermost
    dtype = tensor.tensor_type.name
    return StoredTensor(tensor.name, shape, dtype, path, int(tensor.n_bytes), partial(_read, tensor, shape))


def _read(tensor: Any, shape: tuple[int, ...]) -> "Tensor":
    import torch
    from gguf import GGMLQuantizationType, dequantize

    kinds = GGMLQuantizationType
    if tensor.tensor_type == kinds.BF16:
        return torch.from_numpy(tensor.data).view(torch.bfloat16).view(shape)
    if tensor.tensor_type in (kinds.F64, kinds.F32, kinds.F16):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(tensor.data).view(shape)
    try:
        return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type)).view(shape)
    except NotImplementedError as error:
        raise InputError(f"{tensor.name}: the gguf package cannot dequantize {tensor.tensor_type.name}") from error
