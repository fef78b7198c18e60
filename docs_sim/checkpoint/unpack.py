"""The arithmetic of quantized storage, on torch tensors: codes and scales -> float32. Imports torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_LONGEST_STATE = 10_000


def powers(scales: Tensor) -> Tensor:
    """Scales in float32; bytes are exponents of two, 127 for 1, as E8M0 has them."""
    if scales.dtype == torch.uint8:
        return torch.exp2(scales.float() - 127)
    return scales.float()


def scaled(codes: Tensor, scales: Tensor, sizes: tuple[int, ...], begin: int, zeros: Tensor | None) -> Tensor:
    """Rows [begin, ...) of a weight (out, in): one number each, times the scale of its block of ``sizes``."""
    weight, factors = codes.float(), powers(scales)
    if factors.numel() == 1:
        return (weight if zeros is None else weight - zeros.float().flatten()) * factors.flatten()
    factors = factors.reshape(len(factors), -1)
    rows = torch.arange(begin, begin + len(weight)) // sizes[0]
    columns = torch.arange(weight.shape[1]) // sizes[1]
    if zeros is not None:
        weight -= zeros.float().reshape(factors.shape)[rows][:, columns]
    return weight.mul_(factors[rows][:, columns] if factors.shape[1] > 1 else factors[rows])


def scaled_stack(codes: Tensor, scales: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Weights (E, rows, columns), each times the scales of its blocks of ``sizes``: (E, ...), or one for all."""
    factors = scales.flatten().expand(len(codes)) if scales.numel() == 1 else scales
    return torch.stack([scaled(one, factor, sizes, 0, None) for one, factor in zip(codes, factors, strict=True)])


def _fields(words: Tensor, bits: int) -> Tensor:
    """The unsigned ``bits``-bit fields of rows of 32-bit words, lowest bits first, across words where they must."""
    mask = (1 << bits) - 1
    if 32 % bits == 0:
        return ((words.unsqueeze(-1) >> torch.arange(0, 32, bits, dtype=torch.int32)) & mask).flatten(-2)
    starts = torch.arange(words.shape[-1] * 32 // bits) * bits
    wide = words.long() & 0xFFFFFFFF
    following = torch.cat([wide[..., 1:], torch.zeros_like(wide[..., :1])], dim=-1)
    low, high = (part[..., starts // 32] for part in (wide, following))
    return (((low >> starts % 32) | (high << (32 - starts % 32))) & mask).int()


def _positions(index: Tensor) -> Tensor:
    """Numbers of groups; torch would count negative ones from the end."""
    if bool((index < 0).any()):
        raise IndexError("a negative group")
    return index.long()


def gptq(qweight: Tensor, qzeros: Tensor, scales: Tensor, *, g_idx: Tensor | None, bits: int, offset: int) -> Tensor:
    """GPTQ: codes packed along the inputs, zeros along the outputs; W[o,i] = scale[g,o] (q - (z + offset))."""
    codes = _fields(qweight.T, bits).T  # (in, out)
    zeros = _fields(qzeros, bits)
    groups = torch.arange(len(codes)) // -(-len(codes) // len(scales)) if g_idx is None else _positions(g_idx)
    return ((codes - (zeros[groups] + offset)).float() * scales.float()[groups]).T.contiguous()


def awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Tensor:
    """AWQ (gemm): codes and zeros packed along the outputs in an order of their own; W[o,i] = scale[g,o] (q - z)."""
    order = torch.tensor([_AWQ_ORDER.index(column) for column in range(8)])
    fields = (_fields(words, 4).reshape(len(words), -1, 8) for words in (qweight, qzeros))
    codes, zeros = (one[..., order].flatten(1) for one in fields)  # (in, out), (groups, out)
    groups = torch.arange(len(codes)) // (len(codes) // len(scales))
    return ((codes - zeros[groups]).float() * scales.float()[groups]).T.contiguous()


def pack_quantized(raw: Mapping[str, Tensor], shape: tuple[int, int], bits: int) -> Tensor:
    """compressed-tensors: fields minus half their range, with an optional zero for each row and group."""
    out, inputs = shape
    half = 1 << (bits - 1)
    codes = _fields(raw[".weight_packed"], bits)[:, :inputs] - half
    scales = raw[".weight_scale"].float()
    if ".weight_g_idx" in raw:
        groups = _positions(raw[".weight_g_idx"])
    else:
        groups = torch.arange(inputs) // -(-inputs // scales.shape[1])
    if ".weight_zero_point" in raw:
        zeros = _fields(raw[".weight_zero_point"].T, bits).T[:out] - half
        codes = codes - zeros[:, groups]
    return codes.float() * scales[:, groups]


@cache
def _e2m1() -> Tensor:
    positive = torch.tensor(_E2M1)
    return torch.cat([positive, -positive])


def float4(packed: Tensor, scales: Tensor, divisor: Tensor | None, factor: Tensor | None) -> Tensor:
    """E2M1 numbers, the low half of a byte first, times the scale of their group, over ``divisor`` or by ``factor``."""
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).long()
    factors = powers(scales)
    if divisor is not None:
        factors = factors / divisor.float()
    if factor is not None:
        factors = factors * factor.float()
    group = codes.shape[-1] // factors.shape[-1]
    numbers: Tensor = _e2m1()[codes].reshape(*factors.shape, group) * factors.unsqueeze(-1)
    return numbers.flatten(-2)


@dataclass(frozen=True)
class QuantState:
    """What bitsandbytes writes beside a 4-bit weight, as JSON."""

    shape: tuple[int, ...]
    blocksize: int
    nested_blocksize: int
    nested_offset: float


def quant_state(raw: Tensor) -> QuantState | None:
    """The state that these bytes hold; None if it is not valid."""
    try:
        state = json.loads(bytes(raw.flatten()[:_LONGEST_STATE].tolist()))
        shape = tuple(state["shape"])
        found = QuantState(
            shape, state["blocksize"], state.get("nested_blocksize") or 256, float(state.get("nested_offset") or 0)
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    numbers = (*shape, found.blocksize, found.nested_blocksize)
    return found if shape and all(type(number) is int and number > 0 for number in numbers) else None


def blockwise(raw: Mapping[str, Tensor], state: QuantState) -> Tensor:
    """4 bits of bitsandbytes: flat, the high half of a byte first, code book times the largest of each block."""
    packed = raw[".weight"].flatten()
    codes = torch.stack([packed >> 4, packed & 15], dim=-1).flatten()
    largest = raw[".weight.absmax"]
    if largest.dtype == torch.uint8:
        nested, book = raw[".weight.nested_absmax"].float(), raw[".weight.nested_quant_map"].float()
        blocks = torch.arange(len(largest)) // state.nested_blocksize
        largest = book[largest.long()] * nested[blocks] + state.nested_offset
    count = 1
    for size in state.shape:
        count *= size
    blocks = torch.arange(count) // state.blocksize
    return (raw[".weight.quant_map"].float()[codes[:count].long()] * largest.float()[blocks]).view(state.shape)
