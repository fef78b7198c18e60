"""A LoRA adapter on its base: every adapted tensor becomes W + scaling B A when it is read, as PEFT would merge it."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG = "adapter_config.json"
_PIECE = re.compile(
    r"base_model\.model\.(?P<module>.+?)\."
    r"(?P<piece>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)(?:\.weight|\.default)*"
)
_SAVED = re.compile(r"base_model\.model\.(?P<name>.+?)(?:\.modules_to_save)?\.(?P<kind>weight|bias)")
_OUT_OF_REACH = ("layer_replication", "use_qalora", "trainable_token_indices", "megatron_config")


@dataclass(frozen=True)
class _Update:
    """What an adapter holds for one module.

    Attributes:
        down: lora_A (r, in).
        up: lora_B (out, r).
        magnitude: of DoRA (out,), if any.
        scaling: of the product.
        turned: whether the base stores (in, out): fan_in_fan_out, or an embedding.
    """

    down: StoredTensor
    up: StoredTensor
    magnitude: StoredTensor | None
    scaling: float
    turned: bool


def adapted(
    base: Mapping[str, StoredTensor], adapter: Mapping[str, StoredTensor], config: Mapping[str, Any], name: str
) -> dict[str, StoredTensor]:
    """The tensors of ``base`` with an adapter on them.

    Args:
        base: the tensors of the base, by name.
        adapter: those of the adapter.
        config: content of adapter_config.json.
        name: of the adapter, for messages.

    Raises:
        InputError: if it is no LoRA adapter, or does not fit the base; the first module is named.
    """
    _check_kind(config, name)
    modules: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    tensors = dict(base)
    by_ending = _by_ending(base)
    for key, tensor in adapter.items():
        piece, saved = _PIECE.fullmatch(key), _SAVED.fullmatch(key)
        if piece is not None:
            modules[piece["module"]][piece["piece"]] = tensor
        elif saved is None:
            raise InputError(f"{name}: {shown(key)} is no part of a LoRA adapter; merge it with peft first")
        elif saved["kind"] == "weight":
            target = _target(by_ending, f"{saved['name']}.weight", saved["name"], name)
            if tensor.shape != base[target].shape:
                raise InputError(_misfit(name, saved["name"], base[target], tensor.shape))
            tensors[target] = replace(tensor, name=target)
    for module, pieces in modules.items():
        _adapt(tensors, by_ending, module, pieces, config, name)
    return tensors


def _check_kind(config: Mapping[str, Any], name: str) -> None:
    kind = config.get("peft_type")
    if str(kind).upper() != "LORA":
        raise InputError(f"{name}: is a {shown(kind)} adapter; only LORA is read: merge it with peft first")
    beyond = [key for key in _OUT_OF_REACH if config.get(key)]
    if beyond:
        raise InputError(f"{name}: uses {beyond[0]}, which is not read; merge it with peft first")


def _by_ending(base: Mapping[str, StoredTensor]) -> dict[str, list[str]]:
    """Every ending of a name, at its dots, -> the names: adapters and checkpoints differ in their prefixes."""
    endings: dict[str, list[str]] = defaultdict(list)
    for name in base:
        parts = name.split(".")
        for start in range(len(parts)):
            endings[".".join(parts[start:])].append(name)
    return endings


def _target(by_ending: Mapping[str, list[str]], wanted: str, module: str, name: str) -> str:
    """The tensor of the base that is called ``wanted``, whatever either has in front."""
    parts = wanted.split(".")
    for start in range(len(parts) - 1):
        found = by_ending.get(".".join(parts[start:]), [])
        exact = [tensor for tensor in found if tensor == wanted] or found
        if len(exact) == 1:
            return exact[0]
        if found:
            break
    raise InputError(f"{name}: does not fit this base, which has no {shown(module)}")


def _misfit(name: str, module: str, base: StoredTensor, shape: tuple[int, ...]) -> str:
    return f"{name}: does not fit this base: {shown(module)} is {base.shape} there, and {shape} in the adapter"


def _adapt(
    tensors: dict[str, StoredTensor],
    by_ending: Mapping[str, list[str]],
    module: str,
    pieces: Mapping[str, StoredTensor],
    config: Mapping[str, Any],
    name: str,
) -> None:
    """Put the update of one module on its tensor."""
    embedding = "lora_embedding_A" in pieces
    down, up = (pieces.get(f"lora_{'embedding_' if embedding else ''}{side}") for side in "AB")
    if down is None or up is None:
        raise InputError(f"{name}: {shown(module)} has only one of lora_A and lora_B; save the adapter again")
    if len(down.shape) != 2 or len(up.shape) != 2:
        raise InputError(
            f"{name}: {shown(module)} has lora_A {down.shape} and lora_B {up.shape}, which are no matrices"
        )
    parameters = config.get("target_parameters") or []
    path = module.replace(".base_layer", "")
    stacked = [parameter for parameter in parameters if _names(parameter, path)]
    if stacked:
        _adapt_experts(tensors, by_ending, module, stacked, (down, up), config, name)
        return
    target = _target(by_ending, f"{path}.weight", path, name)
    stored = tensors[target]
    turned = embedding or bool(config.get("fan_in_fan_out"))
    out_in = stored.shape[::-1] if turned else stored.shape
    rank = down.shape[0]
    if (up.shape[0], down.shape[1]) != out_in or up.shape[1] != rank:
        raise InputError(_misfit(name, path, stored, (up.shape[0], down.shape[1])))
    update = _Update(down, up, pieces.get("lora_magnitude_vector"), _scaling(path, rank, config, name), turned)
    tensors[target] = replace(stored, read=partial(_merged, stored, update))


def _scaling(path: str, rank: int, config: Mapping[str, Any], name: str) -> float:
    """lora_alpha / r, or over its root; patterns are matched as PEFT does."""
    stated = _of_pattern(config.get("rank_pattern"), path, config.get("r", 8))
    alpha = _of_pattern(config.get("alpha_pattern"), path, config.get("lora_alpha", 8))
    if stated != rank:
        raise InputError(f"{name}: {shown(path)} has rank {rank}, and {shown(stated)} by {_CONFIG}")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise InputError(f"{name}: lora_alpha of {shown(path)} is {shown(alpha)}")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_pattern(patterns: object, path: str, default: object) -> object:
    for pattern, value in (patterns or {}).items() if isinstance(patterns, Mapping | None) else ():
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error:
            continue
    return default


def _merged(stored: StoredTensor, update: _Update, begin: int, end: int) -> "Tensor":
    """[begin, end) of the first dimension of the merged tensor, in float32."""
    import torch

    down, up = (one.load().float() for one in (update.down, update.up))
    if update.magnitude is None:
        delta = down.T[begin:end] @ up.T if update.turned else up[begin:end] @ down
        return stored.load(begin, end).float() + update.scaling * delta
    whole = stored.load().float()
    merged = (whole.T if update.turned else whole) + update.scaling * (up @ down)
    lengths = torch.linalg.vector_norm(merged, dim=1)
    merged *= (update.magnitude.load().float().flatten() / lengths).unsqueeze(1)
    return (merged.T if update.turned else merged)[begin:end]


def _names(parameter: str, path: str) -> bool:
    """Whether a target parameter, such as ``mlp.experts.gate_up_proj``, is one of this module."""
    module = parameter.rpartition(".")[0]
    return bool(module) and (path == module or path.endswith(f".{module}"))


def _adapt_experts(
    tensors: dict[str, StoredTensor],
    by_ending: Mapping[str, list[str]],
    module: str,
    parameters: list[str],
    pieces: tuple[StoredTensor, StoredTensor],
    config: Mapping[str, Any],
    name: str,
) -> None:
    """Stacked experts: lora_A (E r, in), lora_B (out, r E); which parameter is meant follows from the shapes."""
    down, up = pieces
    path = module.replace(".base_layer", "")
    for parameter in parameters:
        wanted = f"{path}.{parameter.rpartition('.')[2]}"
        target = _target(by_ending, wanted, wanted, name)
        stored = tensors[target]
        if len(stored.shape) != 3 or down.shape[0] % stored.shape[0]:
            continue
        experts, first, second = stored.shape
        rank = down.shape[0] // experts
        turned = (up.shape[0], down.shape[1]) != (first, second)
        if (up.shape[0], down.shape[1]) not in ((first, second), (second, first)) or up.shape[1] != rank * experts:
            continue
        scaling = _scaling(wanted, rank, config, name)
        tensors[target] = replace(stored, read=partial(_merged_experts, stored, down, up, scaling, turned))
        return
    raise InputError(f"{name}: does not fit this base: no parameter of {shown(path)} has the shape of its update")


def _merged_experts(
    stored: StoredTensor,
    down: StoredTensor,
    up: StoredTensor,
    scaling: float,
    turned: bool,
    begin: int,
    end: int,
) -> "Tensor":
    import torch

    experts = stored.shape[0]
    lower = down.load().float().unflatten(0, (experts, -1))[begin:end]  # (e, r, in)
    upper = up.load().float().unflatten(1, (-1, experts))[:, :, begin:end].permute(2, 0, 1)  # (e, out, r)
    delta = torch.bmm(upper, lower)
    return stored.load(begin, end).float() + scaling * (delta.transpose(1, 2) if turned else delta)
