"""A LoRA adapter on its base: every adapted tensor becomes W + scaling B A when it is read, as PEFT would merge it."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, takewhile
from typing import Any, NamedTuple

from docs_sim.checkpoint.merge import Update, merged, merged_experts, of_expert
from docs_sim.checkpoint.patterns import by_pattern
from docs_sim.checkpoint.stack import tower_of
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError, shown

_LARGEST_ALPHA = 1e9
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_CONFIG = "adapter_config.json"
_SIDES = ("encoder", "decoder")
_PIECE = re.compile(
    r"base_model\.model\.(?P<module>.+?)\."
    r"(?P<piece>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)(?:\.weight|\.default)*"
)
_SAVED = re.compile(r"base_model\.model\.(?P<name>.+?)(?:\.modules_to_save)?\.(?P<kind>weight|bias)")
# What transformers stacks when it loads a model -> what it joins for that, in the names of the files.
_APART = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3"), ("fc1", "fc3")),
    "up_proj": (("up_proj",),),
    "down_proj": (("down_proj",), ("w2",), ("fc2",)),
}
_OUT_OF_REACH = (
    "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "megatron_config",
    "monteclora_config", "trainable_token_indices", "use_bdlora", "use_qalora", "velora_config",
)  # fmt: skip


@dataclass(frozen=True)
class _Adapter:
    """What an adapter calls itself in messages, the content of its config, and what its patterns say of modules."""

    name: str
    config: Mapping[str, Any]
    ranks: Mapping[str, object]
    alphas: Mapping[str, object]

    def misfit(self, module: str, stored: StoredTensor, shape: tuple[int, ...]) -> InputError:
        return InputError(
            f"{self.name}: does not fit this base: {shown(module)} is {stored.shape} there, and {shape} in the adapter"
        )

    def scaling(self, path: str, rank: int) -> float:
        """lora_alpha / r, or over its root."""
        stated = self.ranks.get(path, self.config.get("r", 8))
        alpha = self.alphas.get(path, self.config.get("lora_alpha", 8))
        if type(stated) is not int or stated != rank:
            raise InputError(f"{self.name}: {shown(path)} has rank {rank}, and {shown(stated)} by {_CONFIG}")
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not abs(alpha) < _LARGEST_ALPHA:
            raise InputError(f"{self.name}: lora_alpha of {shown(path)} is {shown(alpha)}")
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


@dataclass(frozen=True)
class _Base:
    """The tensors of the base, changed in place, and their names by every ending at a dot: prefixes differ."""

    tensors: dict[str, StoredTensor]
    by_ending: Mapping[str, list[str]]
    changed: dict[str, str] = field(default_factory=dict)  # tensor -> the module that changed it
    ranks: dict[str, int] = field(default_factory=dict)  # module or parameter -> the rank of its update

    def change(self, target: str, module: str, adapter: _Adapter, tensor: StoredTensor) -> None:
        """Put ``tensor`` in place of ``target``, which a second module may not do again."""
        first = self.changed.setdefault(target, module)
        if first != module:
            raise InputError(
                f"{adapter.name}: does not fit this base: {shown(first)} and {shown(module)} would both be "
                f"{shown(target)} there"
            )
        self.tensors[target] = tensor

    def called(self, wanted: str) -> list[str]:
        """The tensors that ``wanted`` may be, whatever either side has in front."""
        parts = wanted.split(".")
        for start in range(min(_number(parts), len(parts) - 1)):  # what is in front may differ, the number not
            found = self.by_ending.get(".".join(parts[start:]), [])
            if found:
                return [wanted] if wanted in found else [name for name in found if _same_part(name, wanted)]
        return []

    def target(self, wanted: str, adapter: _Adapter) -> str:
        """The one tensor that ``wanted`` is."""
        found, parts = self.called(wanted), wanted.split(".")
        if len(found) == 1:
            return found[0]
        tied = "" if _number(parts) < len(parts) else "; if it is tied to the embedding, merge it with peft first"
        many = f" ({len(found)} tensors might be it)" if found else ""
        module = shown(wanted.removesuffix(".weight"))
        raise InputError(f"{adapter.name}: does not fit this base, which has no {module}{many or tied}")

    def lacks(self, wanted: str) -> bool:
        """Whether it is of a module beside those of the base, and in no layer."""
        parts = wanted.split(".")
        return _number(parts) == len(parts) and not any(name.startswith(f"{parts[0]}.") for name in self.tensors)

    def experts(self, module: str, name: str) -> list[str]:
        """The tensors ``name`` of the experts of a module, where each has its own; the block has two names."""
        above, _, container = module.rpartition(".")
        for block in (above, f"{above.rpartition('.')[0]}.block_sparse_moe"):
            numbered = (self.called(f"{block}.{container}.{expert}.{name}.weight") for expert in count())
            found = [one[0] for one in takewhile(lambda one: len(one) == 1, numbered)]
            if found:
                return found
        return []


def _same_part(name: str, wanted: str) -> bool:
    """Whether two names are of the same part of a model, such as the vision tower or the decoder, or may be."""
    if tower_of(name) != tower_of(wanted):
        return False
    one, other = ({side for side in _SIDES if side in name.split(".")} for name in (name, wanted))
    return not one or not other or one == other


def _number(parts: Sequence[str]) -> int:
    """Where the number of the layer stands."""
    return next((place for place, part in enumerate(parts) if part.isdecimal()), len(parts))


class Adapted(NamedTuple):
    """The tensors of a base with an adapter on them, and the rank of every update that it has."""

    tensors: dict[str, StoredTensor]
    ranks: tuple[int, ...]


def adapted(
    base: Mapping[str, StoredTensor], tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], name: str
) -> Adapted:
    """A base with an adapter on it.

    Args:
        base: the tensors of the base, by name.
        tensors: those of the adapter.
        config: content of adapter_config.json.
        name: of the adapter, for messages.

    Raises:
        InputError: if it is no LoRA adapter, or does not fit the base; the first module is named.
    """
    _check_kind(name, config)
    changed = _Base(dict(base), _by_ending(base))
    modules: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    whole: dict[str, StoredTensor] = {}
    for key, tensor in tensors.items():
        piece, saved = _PIECE.fullmatch(key), _SAVED.fullmatch(key)
        if piece is not None:
            pieces = modules[piece["module"]]
            if piece["piece"] in pieces:
                raise InputError(f"{name}: holds {piece['piece']} of {shown(piece['module'])} twice; save it again")
            pieces[piece["piece"]] = tensor
        elif saved is not None:
            wanted = f"{saved['name'].removesuffix('.base_layer')}.{saved['kind']}"
            if wanted in whole:
                raise InputError(f"{name}: holds {shown(wanted)} twice; save it again")
            whole[wanted] = tensor
        else:
            raise InputError(f"{name}: {shown(key)} is no part of a LoRA adapter; merge it with peft first")
    paths = [*map(_path, modules), *(one for module in modules for one in _parameters(config, _path(module)))]
    ranks, alphas = (by_pattern(config.get(f"{kind}_pattern"), paths, name) for kind in ("rank", "alpha"))
    adapter = _Adapter(name, config, ranks, alphas)
    for wanted, tensor in whole.items():
        _replace(changed, adapter, wanted, tensor)
    for module, pieces in modules.items():
        _adapt(changed, adapter, module, pieces)
    return Adapted(changed.tensors, tuple(changed.ranks.values()))


def _path(module: str) -> str:
    return module.replace(".base_layer", "")


def _parameters(config: Mapping[str, Any], path: str) -> list[str]:
    """The target parameters, such as ``mlp.experts.gate_up_proj``, that are of this module."""
    named = config.get("target_parameters")
    pairs = [str(one).rpartition(".") for one in (named if isinstance(named, list) else ())]
    return [f"{path}.{parameter}" for of, _, parameter in pairs if of and f".{path}".endswith(f".{of}")]


def _check_kind(name: str, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if str(kind).upper() != "LORA":
        raise InputError(f"{name}: is a {shown(kind)} adapter; only LORA is read: merge it with peft first")
    initial = str(config.get("init_lora_weights")).lower()
    if initial.startswith(_CHANGE_THE_BASE):
        raise InputError(
            f"{name}: was begun as {initial}, which changes the base; convert it with peft "
            "(save_pretrained with path_initial_model_for_weight_conversion) or merge it first"
        )
    for key in ("use_rslora", "use_dora", "fan_in_fan_out"):
        if not isinstance(config.get(key, False), bool | None):
            raise InputError(f"{name}: {key} is {shown(config[key])}, and must be true or false")
    for key, kind_of_value in (("rank_pattern", dict), ("alpha_pattern", dict), ("target_parameters", list)):
        if not isinstance(config.get(key) or kind_of_value(), kind_of_value):
            raise InputError(f"{name}: {key} is {shown(config[key])}, which is not of the kind that peft writes")
    beyond = [key for key in _OUT_OF_REACH if config.get(key)]
    if beyond:
        raise InputError(f"{name}: uses {beyond[0]}, which is not read; merge it with peft first")


def _by_ending(base: Mapping[str, StoredTensor]) -> dict[str, list[str]]:
    """Only what holds the number of the layer, if there is one, is the name of the same thing."""
    endings: dict[str, list[str]] = defaultdict(list)
    for name in base:
        parts = name.split(".")
        for start in range(min(_number(parts) + 1, len(parts))):
            endings[".".join(parts[start:])].append(name)
    return endings


def _replace(base: _Base, adapter: _Adapter, wanted: str, tensor: StoredTensor) -> None:
    """A whole tensor that was trained (modules_to_save); a head may be one that the base does not have."""
    if not base.called(wanted) and base.lacks(wanted):
        base.tensors[wanted] = replace(tensor, name=wanted)
        return
    target = base.target(wanted, adapter)
    if tensor.shape != base.tensors[target].shape:
        raise adapter.misfit(wanted.removesuffix(".weight"), base.tensors[target], tensor.shape)
    base.change(target, wanted.removesuffix(".weight"), adapter, replace(tensor, name=target))


def _adapt(base: _Base, adapter: _Adapter, module: str, pieces: Mapping[str, StoredTensor]) -> None:
    """Put the update of one module on its tensor."""
    embedding = "lora_embedding_A" in pieces
    if embedding and not pieces.keys().isdisjoint(("lora_A", "lora_B")):
        raise InputError(
            f"{adapter.name}: {shown(module)} has pieces of a linear layer and of an embedding; save the adapter again"
        )
    down, up = (pieces.get(f"lora_{'embedding_' if embedding else ''}{side}") for side in "AB")
    if down is None or up is None:
        raise InputError(f"{adapter.name}: {shown(module)} has only one of lora_A and lora_B; save the adapter again")
    if len(down.shape) != 2 or len(up.shape) != 2 or 0 in (*down.shape, *up.shape):
        raise InputError(f"{adapter.name}: lora_A and lora_B of {shown(module)} are {down.shape} and {up.shape}")
    for piece in pieces.values():
        piece.check_readable()
    path, magnitude = _path(module), pieces.get("lora_magnitude_vector")
    stacked = _parameters(adapter.config, path)
    if (magnitude is not None) != (bool(adapter.config.get("use_dora")) and not stacked):
        has = "no lora_magnitude_vector" if magnitude is None else "a lora_magnitude_vector"
        raise InputError(f"{adapter.name}: {shown(module)} has {has}, and use_dora is {adapter.config.get('use_dora')}")
    if stacked:
        _adapt_experts(base, adapter, stacked, down, up)
        return
    target = base.target(f"{path}.weight", adapter)
    stored = base.tensors[target]
    rank, shape = down.shape[0], (up.shape[0], down.shape[1])
    # fan_in_fan_out is said of all modules, and true of those that store (in, out); where the shape tells, it decides.
    turned = embedding or (bool(adapter.config.get("fan_in_fan_out")) and shape == stored.shape[::-1])
    if shape != (stored.shape[::-1] if turned else stored.shape) or up.shape[1] != rank:
        raise adapter.misfit(path, stored, (up.shape[0], down.shape[1]))
    if magnitude is not None and magnitude.shape != (up.shape[0],):
        raise adapter.misfit(path, stored, magnitude.shape)
    update = Update(down, up, magnitude, adapter.scaling(path, rank), turned)
    base.ranks[module] = rank
    base.change(target, module, adapter, replace(stored, read=partial(merged, stored, update)))


def _adapt_experts(base: _Base, adapter: _Adapter, names: list[str], down: StoredTensor, up: StoredTensor) -> None:
    """Stacked experts: lora_A (E r, in), lora_B (out, r E); which parameter is meant follows from the shapes."""
    shape = (up.shape[0], down.shape[1])
    for name in names:
        if not base.called(name):
            if _adapt_each(base, adapter, name, down, up):
                return
            continue
        target = base.target(name, adapter)
        stored = base.tensors[target]
        if len(stored.shape) != 3 or down.shape[0] % stored.shape[0] or up.shape[1] != down.shape[0]:
            continue
        if shape not in (stored.shape[1:], stored.shape[:0:-1]):
            continue
        rank = down.shape[0] // stored.shape[0]
        scaling, base.ranks[name] = adapter.scaling(name, rank), rank
        update = Update(down, up, None, scaling, turned=shape != stored.shape[1:])
        base.change(target, name, adapter, replace(stored, read=partial(merged_experts, stored, update)))
        return
    raise InputError(
        f"{adapter.name}: does not fit this base, which has no {' or '.join(map(shown, names))} of such a shape"
    )


def _adapt_each(base: _Base, adapter: _Adapter, name: str, down: StoredTensor, up: StoredTensor) -> bool:
    """The same where the base stores each expert by itself, and gate and up apart; False if it does not fit."""
    module, _, parameter = name.rpartition(".")
    for pieces in _APART.get(parameter, ()):
        groups = [base.experts(module, piece) for piece in pieces]
        experts, each = len(groups[0]), (up.shape[0] / len(pieces), down.shape[1])
        if not experts or any(len(group) != experts for group in groups):
            continue
        if up.shape[1] != down.shape[0] or down.shape[0] % experts:
            continue
        if any(base.tensors[target].shape != each for group in groups for target in group):
            continue
        rank = down.shape[0] // experts
        whole, base.ranks[name] = Update(down, up, None, adapter.scaling(name, rank), turned=False), rank
        for place, group in enumerate(groups):
            for expert, target in enumerate(group):
                stored = base.tensors[target]
                rows = range(place * stored.shape[0], (place + 1) * stored.shape[0])
                update = of_expert(whole, expert, experts, rows)
                base.change(target, name, adapter, replace(stored, read=partial(merged, stored, update)))
        return True
    return False
