"""Quantized storage -> tensors of numbers: which stored tensors belong together, and how the weights come back.

A quantized weight is several tensors that share a beginning of their names. Each format is a line of a table: the
endings that it needs, and a function that says what the whole is. Anything packed that no line knows stays refused.
The arithmetic, on torch tensors, is in ``unpack``.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from docs_sim.checkpoint.quantized import Config, Pieces, Whole, raw_tensor, weight_settings
from docs_sim.checkpoint.scales import FP8, scaled_weight
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor

_MISFITS = (IndexError, RuntimeError, KeyError, OverflowError, TypeError, ValueError)
_INTEGER_BITS = (4, 8, 3, 2, 5, 6, 7)  # the usual ones first: few inputs cannot tell all apart


@dataclass(frozen=True)
class Format:
    """A way to store a quantized weight.

    Attributes:
        needs: endings of the names, with the storage types that each may have; none given: any.
        whole: what the pieces make; None if their shapes do not fit together.
        also: endings that may come with it.
    """

    needs: Mapping[str, tuple[str, ...]]
    whole: Callable[[Pieces, Config], Whole | None]
    also: tuple[str, ...] = ()


def dequantized(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Put the pieces of quantized weights together; every other tensor stays as it is.

    Args:
        tensors: by name.
        config: content of config.json.
    """
    settings = _settings(config)
    by_base = _by_base(tensors)
    made: dict[str, StoredTensor] = {}
    used: set[str] = set()
    for base, pieces in by_base.items():
        for form in FORMATS:
            whole = form.whole(pieces, settings) if _has(pieces, form) else None
            if whole is not None:
                members = [pieces[ending] for ending in (*form.needs, *form.also) if ending in pieces]
                made[members[0].name] = _stored(base + whole.weight, whole, members)
                used |= {member.name for member in members}
                break
    together: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if name in made:
            whole_name = made[name].name
            if whole_name in tensors and whole_name not in made[name].pieces:
                raise InputError(
                    f"{tensor.path}: holds {shown(whole_name)} both as it is and quantized; keep one of them"
                )
            together[whole_name] = made[name]
        elif name not in used:
            together[name] = tensor
    return together


def _settings(config: Mapping[str, Any]) -> Config:
    """The outermost quantization_config: parts of a multimodal model have configs of their own, under many names."""
    places = deque([config])
    while places:
        place = places.popleft()
        settings = place.get("quantization_config")
        if isinstance(settings, dict):
            return settings
        places += [part for part in place.values() if isinstance(part, dict)]
    return {}


def _by_base(tensors: Mapping[str, StoredTensor]) -> dict[str, dict[str, StoredTensor]]:
    """Beginning of the name -> ending -> tensor, for all that may be part of a quantized weight."""
    by_base: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    marked = {
        name.removesuffix(next(ending for ending in _MARKS if name.endswith(ending)))
        for name in tensors
        if name.endswith(_MARKS)
    }
    if not marked:
        return {}
    for name, tensor in tensors.items():
        for ending in _ENDINGS:
            if name.endswith(ending) and name.removesuffix(ending) in marked:
                by_base[name.removesuffix(ending)][ending] = tensor
    return by_base


def _has(pieces: Pieces, form: Format) -> bool:
    there = all(
        ending in pieces and (not dtypes or pieces[ending].dtype in dtypes) for ending, dtypes in form.needs.items()
    )
    return there and not any(0 in piece.shape for piece in pieces.values())


def _stored(name: str, whole: Whole, members: list[StoredTensor]) -> StoredTensor:
    def read(begin: int, end: int) -> "Tensor":
        fault = InputError(f"{members[0].path}: the parts of {shown(name)} do not fit together; download it again")
        try:
            tensor = whole.read(begin, end)
        except InputError:
            raise
        except _MISFITS as error:  # scales or indices of another size than their weight
            raise fault from error
        if tensor.shape != (end - begin, *whole.shape[1:]):  # what has another size may still broadcast
            raise fault
        return tensor

    return StoredTensor(
        name=name,
        shape=whole.shape,
        dtype=whole.dtype,
        path=members[0].path,
        bytes=sum(member.bytes for member in members),
        refusal=None,
        read=read,
        pieces=tuple(member.name for member in members),
    )


def _row_scaled(pieces: Pieces, _config: Config) -> Whole | None:
    """Bitsandbytes LLM.int8: rows scaled to 127."""
    stored, scales = pieces[".weight"], pieces[".SCB"]
    if len(stored.shape) != 2 or prod(scales.shape) != stored.shape[0]:
        return None

    def read(begin: int, end: int) -> "Tensor":
        order = pieces.get(".weight_format")
        if order is not None and bool(raw_tensor(order).any()):
            raise InputError(
                f"{stored.path}: {shown(stored.name)} is stored in tiles for one kind of GPU; save it anew"
            )
        return stored.read(begin, end).float() * (raw_tensor(scales).flatten()[begin:end, None].float() / 127)

    return Whole(stored.shape, "INT8 (bitsandbytes)", read)


def _blockwise(kind: str, pieces: Pieces, _config: Config) -> Whole | None:
    """Bitsandbytes nf4 and fp4: a code book, and a scale for each run of weights."""
    from docs_sim.checkpoint.unpack import quant_state

    tables = (".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map")
    if any(len(pieces[ending].shape) != 1 for ending in tables if ending in pieces):
        return None
    state = quant_state(raw_tensor(pieces[f".weight.quant_state.bitsandbytes__{kind}"]))
    scales = prod(pieces[".weight.absmax"].shape)
    if (
        state is None
        or prod(pieces[".weight.quant_map"].shape) != 16
        or scales != -(-prod(state.shape) // state.blocksize)
    ):
        return None
    if 2 * prod(pieces[".weight"].shape) != prod(state.shape) + prod(state.shape) % 2:
        return None

    def read(begin: int, end: int) -> "Tensor":
        from docs_sim.checkpoint.unpack import blockwise

        raw = {ending: raw_tensor(tensor) for ending, tensor in pieces.items() if "quant_state" not in ending}
        return blockwise(raw, state)[begin:end]

    return Whole(state.shape, f"{kind.upper()} (bitsandbytes)", read)


def _gptq_or_awq(pieces: Pieces, config: Config) -> Whole | None:
    """The shapes tell them apart: GPTQ packs words along the inputs, AWQ along the outputs."""
    words, scales, zeros = pieces[".qweight"].shape, pieces[".scales"].shape, pieces[".qzeros"].shape
    if not len(words) == len(scales) == len(zeros) == 2 or 0 in (*words, *scales, *zeros):
        return None
    out = scales[1]
    bits, rest = divmod(32 * zeros[1], out)
    if rest or bits not in (2, 3, 4, 8):
        return None
    packed_inputs = words[1] == out
    inputs = words[0] * 32 // bits if packed_inputs else words[0]
    if not packed_inputs and (words[1] * 32 // bits != out or bits != 4):
        return None
    groups = pieces.get(".g_idx")
    told = groups.shape == (inputs,) if groups is not None else inputs % scales[0] == 0
    if zeros[0] != scales[0] or not told:
        return None
    offset = 0 if config.get("checkpoint_format") == "gptq_v2" or not packed_inputs else 1

    def read(begin: int, end: int) -> "Tensor":
        from docs_sim.checkpoint import unpack

        raw = [raw_tensor(pieces[ending]) for ending in (".qweight", ".qzeros", ".scales")]
        if not packed_inputs:
            return unpack.awq(*raw)[begin:end]
        g_idx = None if groups is None else raw_tensor(groups)
        return unpack.gptq(*raw, g_idx=g_idx, bits=bits, offset=offset)[begin:end]

    return Whole((out, inputs), f"{'GPTQ' if packed_inputs else 'AWQ'} {bits}-bit", read)


def _pack_quantized(pieces: Pieces, config: Config) -> Whole | None:
    """compressed-tensors: integers of few bits, packed along the inputs into 32-bit words."""
    packed, scales = pieces[".weight_packed"].shape, pieces[".weight_scale"].shape
    if len(packed) != 2 or len(scales) != 2 or prod(pieces[".weight_shape"].shape) != 2:
        return None
    out, inputs = map(int, raw_tensor(pieces[".weight_shape"]).flatten().tolist())
    groups = pieces.get(".weight_g_idx")
    if groups is not None and groups.shape != (inputs,):
        return None
    stated = (one.get("num_bits") for one in weight_settings(config))
    possible = [number for number in stated if type(number) is int and number in _INTEGER_BITS]
    bits = next((bits for bits in possible or _INTEGER_BITS if packed == (out, -(-inputs * bits // 32))), None)
    if bits is None or scales[0] != out or not scales[1] or inputs <= 0:
        return None

    def read(begin: int, end: int) -> "Tensor":
        from docs_sim.checkpoint.unpack import pack_quantized

        raw = {ending: raw_tensor(tensor) for ending, tensor in pieces.items()}
        return pack_quantized(raw, (out, inputs), bits)[begin:end]

    return Whole((out, inputs), f"INT{bits} (compressed-tensors)", read)


def _float4(weight: str, group: int, word: str, pieces: Pieces, _config: Config) -> Whole | None:
    """E2M1 numbers, two in a byte, with a scale for each group and perhaps one for the tensor."""
    packed, scales = pieces[weight], pieces[".weight_scale"]
    if len(packed.shape) != 2 or scales.shape != (packed.shape[0], packed.shape[1] * 2 // group):
        return None
    divisor, factor = pieces.get(".weight_global_scale"), pieces.get(".weight_scale_2")
    if any(one is not None and prod(one.shape) != 1 for one in (divisor, factor)):
        return None

    def read(begin: int, end: int) -> "Tensor":
        from docs_sim.checkpoint.unpack import float4

        return float4(
            packed.read(begin, end),
            scales.read(begin, end),
            None if divisor is None else raw_tensor(divisor),
            None if factor is None else raw_tensor(factor),
        )

    return Whole((packed.shape[0], 2 * packed.shape[1]), word, read)


def _mxfp4_experts(pieces: Pieces, _config: Config) -> Whole | None:
    """GPT-OSS: blocks (E, out, in / 32, 16); given as its bfloat16 form is stored, (E, in, out)."""
    blocks, scales = pieces["_blocks"], pieces["_scales"]
    if len(blocks.shape) != 4 or scales.shape != blocks.shape[:3]:
        return None
    experts, out, groups, half = blocks.shape

    def read(begin: int, end: int) -> "Tensor":
        from docs_sim.checkpoint.unpack import float4

        packed = blocks.read(begin, end).flatten(2)
        return float4(packed, scales.read(begin, end), None, None).transpose(1, 2)

    return Whole((experts, groups * half * 2, out), "MXFP4", read, weight="")


FORMATS = (
    Format({".weight": FP8, ".weight_scale_inv": ()}, partial(scaled_weight, ".weight", ".weight_scale_inv")),
    Format({".weight": FP8, ".weight_scale": ()}, partial(scaled_weight, ".weight", ".weight_scale")),
    Format({".weight": FP8, ".scale": ()}, partial(scaled_weight, ".weight", ".scale")),
    Format({".weight": FP8, ".qscale_weight": ()}, partial(scaled_weight, ".weight", ".qscale_weight")),
    *(Format({"": FP8, scale: ()}, partial(scaled_weight, "", scale)) for scale in ("_scale_inv", "_scale")),
    Format(
        {".weight": ("I8",), ".weight_scale": ()},
        partial(scaled_weight, ".weight", ".weight_scale"),
        also=(".weight_zero_point",),
    ),
    Format({".weight": ("I8",), ".SCB": ()}, _row_scaled, also=(".weight_format",)),
    *(
        Format(
            {
                ".weight": ("U8",),
                ".weight.absmax": (),
                ".weight.quant_map": (),
                f".weight.quant_state.bitsandbytes__{kind}": ("U8",),
            },
            partial(_blockwise, kind),
            also=(".weight.nested_absmax", ".weight.nested_quant_map"),
        )
        for kind in ("nf4", "fp4")
    ),
    Format({".qweight": ("I32",), ".qzeros": ("I32",), ".scales": ()}, _gptq_or_awq, also=(".g_idx",)),
    Format(
        {".weight_packed": ("I32",), ".weight_scale": (), ".weight_shape": ("I64", "I32")},
        _pack_quantized,
        also=(".weight_zero_point", ".weight_g_idx"),
    ),
    Format(
        {".weight_packed": ("U8",), ".weight_scale": ("F8_E4M3",), ".weight_global_scale": ()},
        partial(_float4, ".weight_packed", 16, "NVFP4"),
    ),
    Format(
        {".weight": ("U8",), ".weight_scale": ("F8_E4M3",), ".weight_scale_2": ()},
        partial(_float4, ".weight", 16, "NVFP4"),
    ),
    Format(
        {".weight_packed": ("U8",), ".weight_scale": ("U8", "F8_E8M0")},
        partial(_float4, ".weight_packed", 32, "MXFP4"),
    ),
    Format({"_blocks": ("U8",), "_scales": ("U8", "F8_E8M0")}, _mxfp4_experts),
)
_ENDINGS = tuple(dict.fromkeys(ending for form in FORMATS for ending in (*form.needs, *form.also)))
_MARKS = tuple(  # the longest first: one may end as another does
    sorted({ending for form in FORMATS for ending in form.needs} - {"", ".weight", ".weight.quant_map"}, key=len)[::-1]
)
