"""Quantized storage -> the same numbers as the format's own library, or as a reference that unpacks one by one."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from docs_sim.checkpoint import Checkpoint, open_checkpoint
from docs_sim.errors import InputError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "zoo-quantized"
FOLDERS = sorted(path.parent.name for path in SHARED.glob("*/truth.safetensors"))
ABSENT = pytest.param("none", marks=pytest.mark.skip(reason="no reference checkpoints beside the repository"))
AS_STORED = ("attn_o", "mlp_down")
UP = "model.layers.0.mlp.up_proj"
FP8 = torch.float8_e4m3fn
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


@pytest.fixture
def stored(tmp_path):
    """A checkpoint whose one matrix, up_proj, is stored as these tensors."""

    def write(pieces: dict[str, Tensor], settings: dict | None = None) -> Checkpoint:
        save_file(
            {f"{UP}{ending}": tensor.contiguous() for ending, tensor in pieces.items()}, tmp_path / "model.safetensors"
        )
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings or {}}))
        return open_checkpoint(tmp_path)

    return write


def up(checkpoint: Checkpoint) -> Tensor:
    """The weight (out, in), after a look at some of its rows alone."""
    (matrix,) = checkpoint.matrices("mlp_up")
    tensor = matrix.parts[0].tensor
    whole = tensor.load()
    assert whole.shape == tensor.shape
    assert whole.dtype == torch.float32
    assert torch.equal(tensor.load(3, 7), whole[3:7])
    assert torch.equal(matrix.load().T, whole)
    assert checkpoint.unnamed == ()
    return whole


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def codes(*shape: int, bits: int = 4, seed: int = 0) -> Tensor:
    return torch.randint(0, 1 << bits, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def packed(fields: Tensor, bits: int, order: list[int] | None = None) -> Tensor:
    """Fields of the last dimension in 32-bit words, bit by bit; of every eight, field order[j] comes at place j."""
    if order:
        fields = fields.unflatten(-1, (-1, 8))[..., order].flatten(-2)
    single = (fields.unsqueeze(-1) >> torch.arange(bits)) & 1
    words = (single.flatten(-2).unflatten(-1, (-1, 32)).long() << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


@pytest.mark.parametrize("folder", FOLDERS or [ABSENT])
def test_reference_checkpoints(folder):
    checkpoint = open_checkpoint(SHARED / folder)
    truth = load_file(SHARED / folder / "truth.safetensors")
    found = {matrix.key: matrix for matrix in checkpoint.matrices()}
    assert truth.keys() <= found.keys()
    for key, true in truth.items():
        loaded = found[key].load().float()
        assert torch.equal(loaded if found[key].name in AS_STORED else loaded.T, true), key
    assert not any("mlp" in one.name and one.keys for one in checkpoint.unnamed)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize(
    ("ending", "grid", "block"),
    [
        (".weight_scale_inv", (2, 3), [32, 32]),
        (".weight_scale_inv", (5, 3), [10, 32]),
        (".scale", (3, 5), None),
        (".weight_scale", (5, 3), {"group_0": {"weights": {"block_structure": [10, 32]}}}),
        (".weight_scale", (48, 1), None),
        (".weight_scale", (48,), None),
        (".weight_scale", (1,), None),
        (".weight_scale", (), None),
        (".qscale_weight", (), None),
    ],
    ids=str,
)
def test_fp8(ending, grid, block, kind, stored):
    """48 x 80 in blocks: the last ones are not whole."""
    weight, scale = random(48, 80).to(kind), random(*grid, seed=1).abs() + 0.1
    groups = isinstance(block, dict)
    settings = {"config_groups": block} if groups else {"weight_block_size": block} if block else {}
    block = block["group_0"]["weights"]["block_structure"] if groups else block
    checkpoint = stored({".weight": weight, ending: scale}, settings)
    rows, columns = ((*grid, 1, 1))[:2] if grid != (48,) else (48, 1)
    height, width = block or (math.ceil(48 / rows), math.ceil(80 / columns))
    table = scale.reshape(rows, columns)
    expected = torch.stack(
        [torch.stack([weight[i, j].float() * table[i // height, j // width] for j in range(80)]) for i in range(48)]
    )
    assert torch.equal(up(checkpoint), expected)
    assert checkpoint.matrices("mlp_up")[0].dtype.startswith("FP8")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("ending", "grid", "block"),
    [
        ("_scale_inv", (3, 2), None),
        ("_scale_inv", (3, 2), [32, 32]),
        ("_scale", (96, 1), None),
        ("_scale", (1, 64), None),
        ("_scale", (1, 1), None),
        ("_scale", None, None),
        (".weight_scale_inv", (3, 2), [32, 32]),
    ],
    ids=str,
)
def test_fp8_experts_in_one_tensor(ending, grid, block, turned, tmp_path):
    """Scales of blocks, rows, columns or experts; some models store (E, in, out)."""
    weight, name = random(3, 96, 64).to(torch.float8_e4m3fn), "model.layers.0.mlp.experts.gate_up_proj"
    name, ending = (f"{name}.weight", ending.removeprefix(".weight")) if ".weight" in ending else (name, ending)
    scale = random(3, *(grid or ()), seed=1).abs() + 0.1
    table = scale.reshape(3, *(grid or (1, 1)))
    height, width = (math.ceil(size / count) for size, count in zip((96, 64), table.shape[1:], strict=True))
    true = weight.float() * table.repeat_interleave(height, 1).repeat_interleave(width, 2)
    if turned:
        weight, true, scale = (one.transpose(1, 2) if one.dim() > 2 else one for one in (weight, true, scale))
    tensors = {name: weight, f"{name}{ending}": scale, "model.layers.0.mlp.gate.weight": random(3, 64)}
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"weight_block_size": block}}))
    checkpoint = open_checkpoint(tmp_path)
    assert torch.equal(checkpoint.tensors[name].load(), true)
    assert torch.equal(checkpoint.tensors[name].load(1, 2), true[1:2])
    gates = checkpoint.matrices("mlp_gate")
    assert [matrix.expert for matrix in gates] == [0, 1, 2]
    assert all(matrix.shape == (64, 48) for matrix in gates)
    assert checkpoint.unnamed == ()


@pytest.mark.parametrize("shape", [(2, 3, 2), (3, 5, 2), (3, 96), (96, 64), (3, 2, 2, 1)], ids=str)
def test_fp8_experts_with_scales_of_another_shape_are_refused(shape, tmp_path):
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {name: random(3, 96, 64).to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(shape)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="F8_E4M3"):
        open_checkpoint(tmp_path).tensors[name].load()


def test_settings_of_a_part_of_the_model(tmp_path):
    """A block of 20 rows of 32 is told by nothing else: 32 rows in two blocks could be of 16 each."""
    weight, scale = random(32, 32).to(torch.float8_e4m3fn), torch.tensor([[1.0], [2.0]])
    save_file({f"{UP}.weight": weight, f"{UP}.weight_scale_inv": scale}, tmp_path / "model.safetensors")
    settings = {"quantization_config": {"weight_block_size": [20, 32]}}
    (tmp_path / "config.json").write_text(json.dumps({"thinker_config": {"text_config": settings}, "x": [1]}))
    found = open_checkpoint(tmp_path).tensors[f"{UP}.weight"].load()
    assert torch.equal(found, weight.float() * torch.tensor([1.0] * 20 + [2.0] * 12)[:, None])


def test_scales_that_are_exponents(stored):
    weight, scale = random(48, 80).to(torch.float8_e4m3fn), torch.tensor([[120, 127, 130], [125, 126, 127]])
    expected = (
        weight.float() * torch.exp2(scale.float() - 127).repeat_interleave(32, 0)[:48].repeat_interleave(32, 1)[:, :80]
    )
    settings = {"weight_block_size": [32, 32]}
    assert torch.equal(up(stored({".weight": weight, ".scale": scale.to(torch.uint8)}, settings)), expected)
    exponents = scale.to(torch.uint8).view(torch.float8_e8m0fnu)
    assert torch.equal(up(stored({".weight": weight, ".weight_scale_inv": exponents}, settings)), expected)


@pytest.mark.parametrize("zero", [None, 3])
def test_int8(zero, stored):
    weight, scale = codes(48, 80, bits=8).sub(128).to(torch.int8), random(48, 1).abs()
    pieces = {".weight": weight, ".weight_scale": scale}
    if zero is not None:
        pieces[".weight_zero_point"] = torch.full((48, 1), zero, dtype=torch.int8)
    assert torch.equal(up(stored(pieces)), (weight.float() - (zero or 0)) * scale)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("order", ["in order", "desc_act", "no g_idx"])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_gptq(bits, order, form, stored):
    out, inputs, group = 64, 96, 32
    values, zeros, scales = codes(inputs, out, bits=bits), codes(3, out, bits=bits, seed=1), random(3, out).half()
    groups = torch.arange(inputs) // group
    if order == "desc_act":
        groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(0))]
    pieces = {".qweight": packed(values.T.contiguous(), bits).T, ".qzeros": packed(zeros, bits), ".scales": scales}
    if order != "no g_idx":
        pieces[".g_idx"] = groups.int()
    plus = 0 if form == "gptq_v2" else 1
    expected = torch.stack(
        [scales.float()[groups[i]] * (values[i] - (zeros[groups[i]] + plus)) for i in range(inputs)], dim=1
    )
    checkpoint = stored(pieces, {"quant_method": "gptq", "bits": bits, "checkpoint_format": form})
    assert torch.equal(up(checkpoint), expected)
    assert checkpoint.matrices("mlp_up")[0].dtype == f"GPTQ {bits}-bit"


def test_awq(stored):
    out, inputs, group = 64, 96, 32
    values, zeros, scales = codes(inputs, out), codes(3, out, seed=1), random(3, out).half()
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    pieces = {".qweight": packed(values, 4, order), ".qzeros": packed(zeros, 4, order), ".scales": scales}
    expected = torch.stack([scales.float()[i // group] * (values[i] - zeros[i // group]) for i in range(inputs)], dim=1)
    assert torch.equal(up(stored(pieces, {"quant_method": "awq"})), expected)


@pytest.mark.parametrize("bits", [3, 4, 5, 8])
@pytest.mark.parametrize("inputs", [96, 90])
@pytest.mark.parametrize("order", ["in order", "actorder"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_integers(bits, inputs, order, symmetric, stored):
    library = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    out, group, half = 48, 30 if inputs == 90 else 32, 1 << (bits - 1)
    values, zeros = (codes(*shape, bits=bits, seed=shape[1]).sub(half) for shape in ((out, inputs), (out, 3)))
    scales = random(out, 3).abs()
    groups = torch.arange(inputs) // group
    pieces = {
        ".weight_packed": library.pack_to_int32(values.to(torch.int8), bits),
        ".weight_scale": scales,
        ".weight_shape": torch.tensor([out, inputs]),
    }
    if not symmetric:
        pieces[".weight_zero_point"] = library.pack_to_int32(zeros.to(torch.int8), bits, packed_dim=0)
    if order == "actorder":
        groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(0))]
        pieces[".weight_g_idx"] = groups.int()
    expected = (values - (0 if symmetric else zeros[:, groups])).float() * scales[:, groups]
    assert torch.equal(up(stored(pieces)), expected)
    assert torch.equal(
        library.unpack_from_int32(pieces[".weight_packed"], bits, torch.Size([out, inputs])).int(), values
    )


@pytest.mark.parametrize("form", ["compressed-tensors", "modelopt", "mxfp4"])
def test_four_bit_floats(form, stored):
    values = codes(48, 96)
    numbers = torch.tensor(E2M1)[values.long()]
    pack = (values[:, ::2] | values[:, 1::2] << 4).to(torch.uint8)
    if form == "mxfp4":
        scales = torch.randint(100, 150, (48, 3), dtype=torch.uint8)
        pieces = {".weight_packed": pack, ".weight_scale": scales}
        expected = numbers * torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
    else:
        scales, whole = (random(48, 6).abs() + 0.1).to(torch.float8_e4m3fn), torch.tensor([3.5])
        weight, ending = (
            (".weight", ".weight_scale_2") if form == "modelopt" else (".weight_packed", ".weight_global_scale")
        )
        pieces = {weight: pack, ".weight_scale": scales, ending: whole}
        factors = scales.float() * whole if form == "modelopt" else scales.float() / whole
        expected = numbers * factors.repeat_interleave(16, 1)
    assert torch.equal(up(stored(pieces)), expected)


def test_four_bit_floats_are_packed_as_the_library_does():
    library = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
    from docs_sim.checkpoint.unpack import float4

    numbers = torch.tensor(E2M1)[codes(16, 32).long()]
    found = float4(library.pack_fp4_to_uint8(numbers.bfloat16()), torch.ones(16, 2), divisor=None, factor=None)
    assert torch.equal(found, numbers)


def test_mxfp4_experts_are_as_transformers_unpacks_them(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = codes(3, 48, 2, 16, bits=8).to(torch.uint8), codes(3, 48, 2, bits=3).add(124).to(torch.uint8)
    prefix = "model.layers.0.mlp.experts"
    tensors = {
        f"{prefix}.gate_up_proj_blocks": blocks,
        f"{prefix}.gate_up_proj_scales": scales,
        f"{prefix}.gate_up_proj_bias": torch.zeros(3, 48),
        "model.layers.0.mlp.router.weight": random(3, 64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    whole = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # (E, in, out)
    for matrix in open_checkpoint(tmp_path).matrices("mlp_gate"):
        assert torch.equal(matrix.load(), whole[matrix.expert][:, ::2])
        assert matrix.dtype == "MXFP4"


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("shape", [(48, 128), (40, 64)])  # the library errs on the CPU where rows are no whole blocks
def test_bitsandbytes_four_bits(shape, double, kind, stored):
    library = pytest.importorskip("bitsandbytes.functional")
    data, state = library.quantize_4bit(random(*shape), quant_type=kind, compress_statistics=double)
    pieces = {".weight": data} | {f".weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    expected = library.dequantize_4bit(data, state)
    torch.testing.assert_close(up(stored(pieces)), expected.float(), rtol=1e-6, atol=1e-7)


def test_bitsandbytes_eight_bits(stored):
    library = pytest.importorskip("bitsandbytes.functional")
    values, scales, _ = library.int8_vectorwise_quant(random(48, 96).half())
    found = up(stored({".weight": values, ".SCB": scales, ".weight_format": torch.tensor(0, dtype=torch.uint8)}))
    torch.testing.assert_close(found, library.int8_vectorwise_dequant(values, scales).float(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_bitsandbytes_tiles_for_some_gpus_are_refused(order, stored):
    pieces = {".weight": torch.zeros(48, 80, dtype=torch.int8), ".SCB": torch.ones(48)}
    checkpoint = stored(pieces | {".weight_format": torch.tensor(order, dtype=torch.uint8)})
    with pytest.raises(InputError, match="in tiles"):
        checkpoint.matrices("mlp_up")[0].load()


def test_a_weight_that_is_there_twice_is_refused(stored):
    """Plain and as GPTQ: which one comes last in the file says nothing."""
    words = {".qweight": torch.zeros(10, 48), ".qzeros": torch.zeros(1, 6), ".scales": torch.ones(1, 48)}
    pieces = {ending: one.int() if ending != ".scales" else one for ending, one in words.items()}
    with pytest.raises(InputError, match="both as it is and quantized"):
        stored(pieces | {".weight": random(48, 80)})


def test_stated_bits_decide(stored):
    """21 inputs of 3 and of 2 bits take as many words."""
    packed_words, scales = torch.zeros(48, 2, dtype=torch.int32), torch.ones(48, 1)
    pieces = {".weight_packed": packed_words, ".weight_scale": scales, ".weight_shape": torch.tensor([48, 20])}
    for bits in (2, 3):
        checkpoint = stored(pieces, {"config_groups": {"group_0": {"weights": {"num_bits": bits}}}})
        assert checkpoint.matrices("mlp_up")[0].dtype.startswith(f"INT{bits} ")


INT4 = {
    ".weight_packed": torch.zeros(48, 10, dtype=torch.int32),
    ".weight_scale": torch.ones(48, 4),
    ".weight_shape": torch.tensor([48, 80]),
}
NVFP4 = {".weight_packed": torch.zeros(48, 40, dtype=torch.uint8), ".weight_scale": torch.ones(48, 5).to(FP8)}


@pytest.mark.parametrize(
    "pieces",
    [
        INT4 | {".weight_g_idx": torch.zeros(1, dtype=torch.int32)},
        INT4 | {".weight_g_idx": torch.zeros(1, 80, dtype=torch.int32)},
        NVFP4 | {".weight_global_scale": torch.arange(1.0, 6)},
        {
            ".weight": torch.ones(48, 80, dtype=torch.int8),
            ".weight_scale": torch.ones(1),
            ".weight_zero_point": torch.arange(80, dtype=torch.int8),
        },
    ],
    ids=["one group index", "a row of group indices", "several scales of a tensor", "a zero point for each column"],
)
def test_pieces_that_only_broadcast_are_refused(pieces, stored):
    checkpoint = stored(pieces)
    with pytest.raises(InputError):
        checkpoint.matrices("mlp_up")[0].load()


@pytest.mark.parametrize("state", [b"[" * 9999, b'{"a":' * 1999], ids=["lists", "objects"])
def test_nested_state_of_bitsandbytes_is_refused(state, stored):
    pieces = {
        ".weight": torch.zeros(1920, 1, dtype=torch.uint8),
        ".weight.absmax": torch.ones(60),
        ".weight.quant_map": torch.ones(16),
        ".weight.quant_state.bitsandbytes__nf4": torch.tensor(list(state), dtype=torch.uint8),
    }
    with pytest.raises(InputError):
        stored(pieces).matrices("mlp_up")[0].load()


@pytest.mark.parametrize(
    "change", [{"blocksize": 10**30}, {"column": ".weight.absmax"}, {"column": ".weight.quant_map"}]
)
def test_odd_tables_of_bitsandbytes_are_refused(change, stored):
    state = {"shape": [48, 80], "blocksize": change.get("blocksize", 64)}
    pieces = {
        ".weight": torch.zeros(1920, 1, dtype=torch.uint8),
        ".weight.absmax": torch.ones(1 if "blocksize" in change else 60),
        ".weight.quant_map": torch.ones(16),
        ".weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    if "column" in change:
        pieces[change["column"]] = pieces[change["column"]].unsqueeze(1)
    with pytest.raises(InputError):
        stored(pieces).matrices("mlp_up")[0].load()


PACKED = {
    "FP8 of joined matrices, each with its scale": (
        {".weight": torch.zeros(48, 80).to(torch.float8_e4m3fn), ".weight_scale": torch.ones(3)},
        "F8_E4M3",
    ),
    "FP8 with several scales that are neither of rows nor of squares": (
        {".weight": torch.zeros(48, 80).to(torch.float8_e4m3fn), ".weight_scale": torch.ones(4)},
        "F8_E4M3",
    ),
    "FP8 without a scale": ({".weight": torch.zeros(48, 80).to(torch.float8_e4m3fn)}, "F8_E4M3"),
    "FP8 with a scale of another shape": (
        {".weight": torch.zeros(48, 80).to(torch.float8_e4m3fn), ".weight_scale": torch.ones(7, 81)},
        "F8_E4M3",
    ),
    "FP8 in blocks of a size that nothing tells": (
        {".weight": torch.zeros(48, 80).to(torch.float8_e4m3fn), ".weight_scale_inv": torch.ones(5, 3)},
        "F8_E4M3",
    ),
    "FP8 with a scale that is empty": (
        {".weight": torch.zeros(48, 80).to(torch.float8_e4m3fn), ".weight_scale_inv": torch.ones(0, 3)},
        "F8_E4M3",
    ),
    "integers without a scale": ({".weight": torch.zeros(48, 80, dtype=torch.int8)}, "I8"),
    "bytes without a state": ({".weight": torch.zeros(480, 1, dtype=torch.uint8)}, "U8"),
}


@pytest.mark.parametrize("block", [[16, 32], [24, 26], [64, 64]], ids=str)
def test_stated_block_that_the_number_of_scales_denies_is_refused(block, stored):
    """Of several that the number allows (24 to 47 rows here) the shapes cannot tell, so there the config decides."""
    pieces = {".weight": random(48, 80).to(torch.float8_e4m3fn), ".weight_scale_inv": torch.ones(2, 3)}
    with pytest.raises(InputError, match="F8_E4M3"):
        stored(pieces, {"weight_block_size": block}).matrices("mlp_up")[0].load()


@pytest.mark.parametrize("case", PACKED)
def test_what_no_format_explains_is_refused_by_name(case, stored):
    pieces, words = PACKED[case]
    with pytest.raises(InputError, match=words) as caught:
        stored(pieces).matrices("mlp_up")[0].load()
    assert UP in str(caught.value)


@pytest.mark.parametrize(
    "pieces",
    [
        {".qweight": (12, 64), ".qzeros": (3, 10), ".scales": (3, 64)},  # 5 bits
        {".qweight": (12, 64), ".qzeros": (2, 8), ".scales": (3, 64)},
        {".weight_packed": (48, 12), ".weight_scale": (48, 3), ".weight_shape": (1,)},
    ],
    ids=str,
)
def test_pieces_that_do_not_fit_are_listed(pieces, stored):
    checkpoint = stored({ending: torch.ones(shape, dtype=torch.int32) for ending, shape in pieces.items()})
    assert {one.name for one in checkpoint.unnamed} == {f"{UP}{ending}" for ending in pieces}
