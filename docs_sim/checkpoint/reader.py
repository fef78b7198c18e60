"""The files of a checkpoint -> every tensor that they store. Headers only; no weight is read."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs_sim.checkpoint.dequantize import dequantized
from docs_sim.checkpoint.file_names import is_file
from docs_sim.checkpoint.file_state import FileState
from docs_sim.checkpoint.gguf import read_gguf_tensors
from docs_sim.checkpoint.header import FLOATS, TensorHeader, read_header
from docs_sim.checkpoint.json_files import read_json, read_weight_map
from docs_sim.checkpoint.remote import RemoteFile
from docs_sim.checkpoint.source import Source
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor

_CONNECTIONS = 8


def read_files(source: Source) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """All tensors of a checkpoint by name, in the order of its files, and its config.

    Raises:
        InputError: naming the file that is missing, cut short or not valid.
    """
    if source.weights.suffix == ".gguf":
        tensors, architecture = read_gguf_tensors(source.weights)
        return tensors, {} if architecture is None else {"architectures": [architecture]}
    tensors = _read_shards(source) if source.weights.name.endswith(".index.json") else _read_one(source)
    config = read_json(path) if (path := source.directory / "config.json").is_file() else {}
    return dequantized(tensors, config), config


def read_adapter(source: Source) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """All tensors of a LoRA adapter by name, and its config.

    Raises:
        InputError: naming the file that is not valid.
    """
    return _read_one(source), read_json(source.directory / "adapter_config.json")


def _read_one(source: Source) -> dict[str, StoredTensor]:
    return read_safetensors(source.weights, _remote_file(source, source.weights.name))


def _remote_file(source: Source, name: str) -> RemoteFile | None:
    """A file that has to be fetched, with its header there already; None if it is on this disk."""
    if source.remote is None or is_file(source.directory / name):
        return None
    remote = source.remote.file(name)
    remote.fetch_header()
    return remote


def read_safetensors(path: Path, remote: RemoteFile | None = None) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by name.

    Args:
        path: of the file.
        remote: what to fetch it from, if it is not there.

    Raises:
        InputError: naming the file, if it cannot be read or its header is not valid.
    """
    headers, state = read_header(path if remote is None else remote.path)
    reads = {
        name: partial(_map_tensor, path, header, state) if remote is None else partial(_fetch_tensor, remote, header)
        for name, header in headers.items()
    }
    return {name: _stored(name, header, path, reads[name]) for name, header in headers.items()}


def _stored(name: str, header: TensorHeader, path: Path, read: Callable[[int, int], "Tensor"]) -> StoredTensor:
    # FP8 and packed integers stand for other numbers until they are scaled: refused, never cast.
    refusal = None if header.dtype in FLOATS else f"stored as {header.dtype}, which cannot be dequantized"
    return StoredTensor(name, header.shape, header.dtype, path, header.end - header.begin, refusal, read)


def _map_tensor(path: Path, header: TensorHeader, state: FileState | None, begin: int, end: int) -> "Tensor":
    from docs_sim.checkpoint.memory_map import map_tensor  # imports torch, which listing a checkpoint does not need

    return map_tensor(path, header, state, begin, end)


def _fetch_tensor(remote: RemoteFile, header: TensorHeader, begin: int, end: int) -> "Tensor":
    _, first, last = header.entries(begin, end)
    remote.fetch(first, last)
    return _map_tensor(remote.path, header, None, begin, end)  # other processes write into the file what they need


def _read_shards(source: Source) -> dict[str, StoredTensor]:
    index = source.weights
    weight_map = read_weight_map(index)
    names = list(dict.fromkeys(weight_map.values()))
    with ThreadPoolExecutor(_CONNECTIONS if source.remote else 1) as pool:
        shards = dict(zip(names, pool.map(partial(_read_shard, source), names), strict=True))
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise InputError(f"{index}: says that {shard} holds {shown(name)}, which it does not")
    return _joined(index, shards, weight_map)


def _read_shard(source: Source, shard: str) -> dict[str, StoredTensor]:
    path = source.directory / shard
    if not is_file(path) and (source.remote is None or shard not in source.remote.files):
        raise InputError(f"{source.weights}: names the shard {shown(shard)}, which is not there; download it")
    return read_safetensors(path, _remote_file(source, shard))


def _joined(
    index: Path, shards: dict[str, dict[str, StoredTensor]], weight_map: dict[str, str]
) -> dict[str, StoredTensor]:
    """The tensors of all shards, also those that the index does not list; a copy is listed with its shard."""
    joined: dict[str, StoredTensor] = {}
    for shard, tensors in shards.items():
        for name, tensor in tensors.items():
            if weight_map.get(name, shard) != shard:
                again = f"{name} (again, in {shard})"
                joined[again] = replace(tensor, name=again)
            elif name in joined:
                places = f"{joined[name].path.name} and {tensor.path.name}"
                raise InputError(f"{index}: does not say which {shown(name)} is used, that of {places}")
            else:
                joined[name] = tensor
    return joined
