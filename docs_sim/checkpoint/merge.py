"""The arithmetic of LoRA: entries of a stored tensor with an update on them, in float32, as PEFT would merge it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from docs_sim.checkpoint.stored import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Update:
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


def merged(stored: StoredTensor, update: Update, begin: int, end: int) -> "Tensor":
    """[begin, end) of the first dimension of the merged tensor, in float32."""
    import torch

    down, up = (one.load().float() for one in (update.down, update.up))
    if update.magnitude is None:
        delta = down.T[begin:end] @ up.T if update.turned else up[begin:end] @ down
        return stored.load(begin, end).float() + update.scaling * delta
    whole = stored.load().float()
    rows = (whole.T if update.turned else whole) + update.scaling * (up @ down)
    lengths = torch.linalg.vector_norm(rows, dim=1)
    rows *= (update.magnitude.load().float().flatten() / lengths).unsqueeze(1)
    return (rows.T if update.turned else rows)[begin:end]


def of_expert(whole: Update, expert: int, experts: int, rows: range) -> Update:
    """The update of one expert, and of these of its rows: lora_A is (E, r, in), lora_B (out, r, E)."""
    rank = whole.down.shape[0] // experts

    def read_down(begin: int, end: int) -> "Tensor":
        return whole.down.read(expert * rank + begin, expert * rank + end)

    def read_up(begin: int, end: int) -> "Tensor":
        return whole.up.read(rows.start + begin, rows.start + end)[:, expert::experts]

    down = replace(whole.down, shape=(rank, whole.down.shape[1]), read=read_down)
    return replace(whole, down=down, up=replace(whole.up, shape=(len(rows), rank), read=read_up))


def merged_experts(stored: StoredTensor, update: Update, begin: int, end: int) -> "Tensor":
    """Experts [begin, end) of the merged tensor, in float32."""
    import torch

    experts = stored.shape[0]
    down = update.down.load().float().unflatten(0, (experts, -1))[begin:end]  # (e, r, in)
    up = update.up.load().float().unflatten(1, (-1, experts))[:, :, begin:end].permute(2, 0, 1)  # (e, out, r)
    delta = torch.bmm(up, down)
    return stored.load(begin, end).float() + update.scaling * (delta.transpose(1, 2) if update.turned else delta)
