"""What the formats of quantized weights have in common: their pieces, and the whole that these make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docs_sim.checkpoint.stored import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

Pieces = Mapping[str, StoredTensor]  # ending -> tensor
Config = Mapping[str, Any]  # quantization_config


@dataclass(frozen=True)
class Whole:
    """What the pieces of a format make.

    Attributes:
        shape: of the weight, (out, in) or a stack of them.
        dtype: what it was stored as, in a few words.
        read: reads [begin, end) of its first dimension.
        weight: ending of the weight's own name.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[int, int], "Tensor"]
    weight: str = ".weight"


def raw_tensor(tensor: StoredTensor) -> "Tensor":
    """All of a stored tensor, in its own type."""
    return tensor.read(0, tensor.shape[0] if tensor.shape else 1)


def weight_settings(config: Config) -> list[dict[str, Any]]:
    """What compressed-tensors says of weights, for each of its groups."""
    groups = config.get("config_groups")
    groups = groups.values() if isinstance(groups, dict) else ()
    weights = (group.get("weights") for group in groups if isinstance(group, dict))
    return [one for one in weights if isinstance(one, dict)]
