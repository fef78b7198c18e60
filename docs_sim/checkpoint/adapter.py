"""A LoRA adapter on its base: every adapted tensor becomes W + scaling B A when it is read, as PEFT would merge it."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_ALPHA = 1e9
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")
_CONFIG = "adapter_config.json"
_PIECE = re.compile(
    r"base_model\.model\.(?P<module>.+?)\."
    r"(?P<piece>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)(?:\.weight|\.default)*"
)
_SAVED = re.compile(r"base_model\.model\.(?P<name>.+?)(?:\.modules_to_save)?\.(?P<kind>weight|bias)")
_OUT_OF_REACH = ("layer_replication", "use_qalora", "trainable_token_indices", "megatron_config")


@dataclass(frozen=True)
class _Adapter:
    """What an adapter calls itself in messages, and the content of its config."""

    name: str
    config: Mapping[str, Any]

    def misfit(self, module: str, stored: StoredTensor, shape: tuple[int, ...]) -> InputError:
        return InputError(
            f"{self.name}: does not fit this base: {shown(module)} is {stored.shape} there, and {shape} in the adapter"
        )

    def scaling(self, path: str, rank: int) -> float:
        """lora_alpha / r, or over its root; patterns are matched as PEFT does."""
        stated = _of_pattern(self.config.get("rank_pattern"), path, self.config.get("r", 8))
        alpha = _of_pattern(self.config.get("alpha_pattern"), path, self.config.get("lora_alpha", 8))
        if stated != rank:
            raise InputError(f"{self.name}: {shown(path)} has rank {rank}, and {shown(stated)} by {_CONFIG}")
        if not isinstance(alpha, int | float) or not abs(alpha) < _LARGEST_ALPHA:
            raise InputError(f"{self.name}: lora_alpha of {shown(path)} is {shown(alpha)}")
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def _of_pattern(patterns: object, path: str, default: object) -> object:
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error:
            continue
    return default


@dataclass(frozen=True)
class _Base:
    """The tensors of the base, changed in place, and their names by every ending at a dot: prefixes differ."""

    tensors: dict[str, StoredTensor]
    by_ending: Mapping[str, list[str]]

    def target(self, wanted: str, adapter: _Adapter) -> str:
        """The tensor that is called ``wanted``, whatever either side has in front."""
        parts = wanted.split(".")
        layer = next((place for place, part in enumerate(parts) if part.isdecimal()), len(parts))
        for start in range(min(layer, len(parts) - 1)):  # what is in front may differ, the number of the layer not
            found = self.by_ending.get(".".join(parts[start:]), [])
            exact = [name for name in found if name == wanted] or found
            if len(exact) == 1:
                return exact[0]
            if found:
                break
        module = wanted.removesuffix(".weight")
        raise InputError(f"{adapter.name}: does not fit this base, which has no {shown(module)}")


def adapted(
    base: Mapping[str, StoredTensor], tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], name: str
) -> dict[str, StoredTensor]:
    """The tensors of ``base`` with an adapter on them.

    Args:
        base: the tensors of the base, by name.
        tensors: those of the adapter.
        config: content of adapter_config.json.
        name: of the adapter, for messages.

    Raises:
        InputError: if it is no LoRA adapter, or does not fit the base; the first module is named.
    """
    adapter, merged = _Adapter(name, config), _Base(dict(base), _by_ending(base))
    _check_kind(adapter)
    modules: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        piece, saved = _PIECE.fullmatch(key), _SAVED.fullmatch(key)
        if piece is not None:
            modules[piece["module"]][piece["piece"]] = tensor
        elif saved is None:
            raise InputError(f"{name}: {shown(key)} is no part of a LoRA adapter; merge it with peft first")
        elif saved["kind"] == "weight":
            _replace(merged, adapter, saved["name"].removesuffix(".base_layer"), tensor)
    for module, pieces in modules.items():
        _adapt(merged, adapter, module, pieces)
    return merged.tensors


def _check_kind(adapter: _Adapter) -> None:
    kind = adapter.config.get("peft_type")
    if str(kind).upper() != "LORA":
        raise InputError(f"{adapter.name}: is a {shown(kind)} adapter; only LORA is read: merge it with peft first")
    initial = str(adapter.config.get("init_lora_weights")).lower()
    if initial.startswith(_CHANGE_THE_BASE):
        raise InputError(
            f"{adapter.name}: was begun as {initial}, which changes the base; convert it with peft "
            "(save_pretrained with path_initial_model_for_weight_conversion) or merge it first"
        )
    beyond = [key for key in _OUT_OF_REACH if adapter.config.get(key)]
    if beyond:
        raise InputError(f"{adapter.name}: uses {beyond[0]}, which is not read; merge it with peft first")


def _by_ending(base: Mapping[str, StoredTensor]) -> dict[str, list[str]]:
    endings: dict[str, list[str]] = defaultdict(list)
    for name in base:
        parts = name.split(".")
        for start in range(len(parts)):
            endings[".".join(parts[start:])].append(name)
    return endings


def _replace(base: _Base, adapter: _Adapter, module: str, tensor: StoredTensor) -> None:
    """A whole tensor that was trained: modules_to_save."""
    target = base.target(f"{module}.weight", adapter)
    if tensor.shape != base.tensors[target].shape:
        raise adapter.misfit(module, base.tensors[target], tensor.shape)
    base.tensors[target] = replace(tensor, name=target)


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


def _adapt(base: _Base, adapter: _Adapter, module: str, pieces: Mapping[str, StoredTensor]) -> None:
    """Put the update of one module on its tensor."""
    embedding = "lora_embedding_A" in pieces
    down, up = (pieces.get(f"lora_{'embedding_' if embedding else ''}{side}") for side in "AB")
    if down is None or up is None:
        raise InputError(f"{adapter.name}: {shown(module)} has only one of lora_A and lora_B; save the adapter again")
    if len(down.shape) != 2 or len(up.shape) != 2 or 0 in (*down.shape, *up.shape):
        raise InputError(f"{adapter.name}: lora_A and lora_B of {shown(module)} are {down.shape} and {up.shape}")
    for piece in pieces.values():
        piece.check_readable()
    path = module.replace(".base_layer", "")
    parameters = adapter.config.get("target_parameters")
    parameters = parameters if isinstance(parameters, list) else []
    stacked = [str(parameter).rpartition(".")[2] for parameter in parameters if _names(str(parameter), path)]
    if stacked:
        _adapt_experts(base, adapter, [f"{path}.{parameter}" for parameter in stacked], down, up)
        return
    target = base.target(f"{path}.weight", adapter)
    stored = base.tensors[target]
    rank, shape = down.shape[0], (up.shape[0], down.shape[1])
    # fan_in_fan_out is said of all modules, and true of those that store (in, out); where the shape tells, it decides.
    turned = embedding or (bool(adapter.config.get("fan_in_fan_out")) and shape == stored.shape[::-1])
    if shape != (stored.shape[::-1] if turned else stored.shape) or up.shape[1] != rank:
        raise adapter.misfit(path, stored, (up.shape[0], down.shape[1]))
    magnitude = pieces.get("lora_magnitude_vector")
    if magnitude is not None and math.prod(magnitude.shape) != up.shape[0]:
        raise adapter.misfit(path, stored, magnitude.shape)
    update = _Update(down, up, magnitude, adapter.scaling(path, rank), turned)
    base.tensors[target] = replace(stored, read=partial(_merged, stored, update))


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


def _adapt_experts(base: _Base, adapter: _Adapter, names: list[str], down: StoredTensor, up: StoredTensor) -> None:
    """Stacked experts: lora_A (E r, in), lora_B (out, r E); which parameter is meant follows from the shapes."""
    shape = (up.shape[0], down.shape[1])
    for name in names:
        target = base.target(name, adapter)
        stored = base.tensors[target]
        if len(stored.shape) != 3 or down.shape[0] % stored.shape[0] or up.shape[1] != down.shape[0]:
            continue
        if shape not in (stored.shape[1:], stored.shape[:0:-1]):
            continue
        scaling = adapter.scaling(name, down.shape[0] // stored.shape[0])
        update = _Update(down, up, None, scaling, turned=shape != stored.shape[1:])
        base.tensors[target] = replace(stored, read=partial(_merged_experts, stored, update))
        return
    raise InputError(f"{adapter.name}: does not fit this base: the shapes of {' and '.join(names)} are others")


def _merged_experts(stored: StoredTensor, update: _Update, begin: int, end: int) -> "Tensor":
    """Experts [begin, end) of the merged tensor, in float32."""
    import torch

    experts = stored.shape[0]
    down = update.down.load().float().unflatten(0, (experts, -1))[begin:end]  # (e, r, in)
    up = update.up.load().float().unflatten(1, (-1, experts))[:, :, begin:end].permute(2, 0, 1)  # (e, out, r)
    delta = torch.bmm(up, down)
    return stored.load(begin, end).float() + update.scaling * (delta.transpose(1, 2) if update.turned else delta)
