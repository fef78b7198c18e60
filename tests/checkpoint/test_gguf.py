"""GGUF files, written by the gguf package and read back: equal to its own dequantization, or refused in one line."""

import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from docs_sim.checkpoint import open_checkpoint
from docs_sim.errors import InputError, MissingExtraError

ROWS, COLUMNS = 6, 512
UP = "blk.0.ffn_up.weight"
QUANTIZED = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4)
DEQUANTIZED_ONLY = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ2_XXS, Kind.IQ3_S, Kind.IQ4_XS)
FLOATS = {Kind.F64: torch.float64, Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}


@pytest.fixture(autouse=True)
def every_warning():
    """torch warns of most things once only; here each time."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.fixture
def write_gguf(tmp_path):
    """Write arrays (name -> stored array, kind) as a GGUF file."""

    def write(arrays: dict[str, tuple[np.ndarray, Kind]], architecture: str = "llama", *, split: int = 0) -> Path:
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        if split:
            writer.add_uint16("split.count", split)
            writer.add_uint16("split.no", 0)
        for name, (array, kind) in arrays.items():
            writer.add_tensor(name, array, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def weights(seed: int = 0, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored_as(kind: Kind) -> np.ndarray:
    """Some weights in the storage of this kind."""
    if kind == Kind.F64:
        return weights().astype(np.float64)
    if kind in DEQUANTIZED_ONLY:  # any bytes are a valid block
        block, size = gguf.GGML_QUANT_SIZES[kind]
        return np.random.default_rng(1).integers(0, 64, (ROWS, COLUMNS // block * size), dtype=np.uint8)
    return gguf.quantize(weights(), kind)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_floats_are_read_bit_for_bit(kind, write_gguf):
    stored = stored_as(kind)
    matrix = open_checkpoint(write_gguf({UP: (stored, kind)})).matrices("mlp_up")[0]
    loaded = matrix.load()
    assert loaded.dtype == FLOATS[kind]
    assert loaded.shape == matrix.shape == (COLUMNS, ROWS)
    assert loaded.T.contiguous().view(torch.uint8).numpy().tobytes() == stored.tobytes()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [*QUANTIZED, *DEQUANTIZED_ONLY], ids=lambda kind: kind.name)
def test_blocks_are_dequantized_as_gguf_does(kind, write_gguf):
    stored = stored_as(kind)
    matrix = open_checkpoint(write_gguf({UP: (stored, kind)})).matrices("mlp_up")[0]
    assert matrix.dtype == kind.name
    assert matrix.shape == (COLUMNS, ROWS)
    loaded = matrix.load()
    assert loaded.dtype == torch.float32
    np.testing.assert_array_equal(loaded.T.numpy(), gguf.dequantize(stored, kind))


@pytest.mark.parametrize("kind", [Kind.I8, Kind.I32, Kind.Q8_K], ids=lambda kind: kind.name)
def test_storage_that_cannot_be_dequantized_is_refused_by_name(kind, write_gguf):
    if kind == Kind.Q8_K:
        array = np.zeros((ROWS, COLUMNS // 256 * gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    else:
        array = np.ones((ROWS, COLUMNS), dtype={Kind.I8: np.int8, Kind.I32: np.int32}[kind])
    path = write_gguf({UP: (array, kind)})
    matrix = open_checkpoint(path).matrices("mlp_up")[0]
    with pytest.raises(InputError, match=kind.name) as caught:
        matrix.load()
    assert UP in str(caught.value)
    assert str(path) in str(caught.value)


def test_names_of_llama_cpp(write_gguf):
    shapes = {
        **{f"blk.{layer}.attn_q.weight": (32, 64) for layer in (0, 1)},
        **{f"blk.{layer}.attn_output.weight": (64, 32) for layer in (0, 1)},
        **{f"blk.{layer}.ffn_down.weight": (64, 96) for layer in (0, 1)},
        **{f"blk.{layer}.ffn_up.weight": (96, 64) for layer in (0, 1)},
        "blk.0.attn_norm.weight": (64,),
        "token_embd.weight": (100, 64),
        "output.weight": (100, 64),
        "rope_freqs.weight": (8,),
    }
    arrays = {name: (weights(number, shape), Kind.F32) for number, (name, shape) in enumerate(shapes.items())}
    path = write_gguf(arrays, "qwen2")
    checkpoint = open_checkpoint(path)
    assert (checkpoint.layout, checkpoint.architecture, checkpoint.name) == ("gguf", "qwen2", "tiny")
    assert {matrix.key: matrix.shape for matrix in checkpoint.matrices() if matrix.layer != 1} == {
        "layers.0.attn_q": (64, 32),
        "layers.0.attn_o": (64, 32),
        "layers.0.mlp_up": (64, 96),
        "layers.0.mlp_down": (64, 96),
        "embed": (64, 100),
        "lm_head": (64, 100),
    }
    assert {one.name for one in checkpoint.unnamed} == {"blk.0.attn_norm.weight", "rope_freqs.weight"}
    down = checkpoint.matrices("mlp_down")[1]
    np.testing.assert_array_equal(down.load().numpy(), arrays[down.tensors[0]][0])
    assert open_checkpoint(path.parent).source.weights == path


NOT_GGUF = {
    "empty": (b"", "is empty"),
    "three bytes": (b"GGU", "is not a GGUF file"),
    "magic only": (b"GGUF", "cut short or not a valid"),
    "wrong magic": (b"GGML" + bytes(60), "is not a GGUF file"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    "unknown version": (b"GGUF" + (77).to_bytes(4, "little") + bytes(56), "version 77.*update the package docs-sim"),
    "absurd number of tensors": (
        b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 8 + bytes(8),
        "cut short or not a valid",
    ),
    "absurd number of fields": (
        b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + b"\xff" * 8,
        "cut short or not a valid",
    ),
}


@pytest.mark.parametrize("attack", NOT_GGUF)
def test_what_is_no_gguf_file_is_refused_in_one_line(attack, tmp_path):
    content, words = NOT_GGUF[attack]
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_checkpoint(tmp_path / "tiny.gguf")


def test_file_cut_anywhere_is_refused(write_gguf):
    path = write_gguf({UP: (weights(shape=(2, 8)), Kind.F32)})
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError) as caught:
            open_checkpoint(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["general.architecture", UP])
def test_text_that_is_not_utf_8_is_refused(name, write_gguf):
    path = write_gguf({UP: (weights(shape=(2, 8)), Kind.F32)})
    path.write_bytes(path.read_bytes().replace(name.encode(), b"\xff" * len(name)))
    with pytest.raises(InputError):
        open_checkpoint(path)


def test_absurd_array_is_refused_at_once(tmp_path, open_with_little_time):
    # An array of 2^60 numbers in a file of 100 bytes: a parser that believes it runs until memory is full.
    path, key = tmp_path / "tiny.gguf", b"tokenizer.ggml.scores"
    version, no_tensors, one_field, array_of_float32 = 3, 0, 1, (9, 6)
    start = b"GGUF" + struct.pack("<IQQQ", version, no_tensors, one_field, len(key))
    path.write_bytes(start + key + struct.pack("<IIQ", *array_of_float32, 2**60))
    assert open_with_little_time(path) == "refused"


def test_one_part_of_a_split_file_is_not_taken_for_the_model(write_gguf):
    path = write_gguf({UP: (weights(), Kind.F32)}, split=3)
    with pytest.raises(InputError, match="3"):
        open_checkpoint(path)


def test_writing_to_a_loaded_matrix_leaves_the_file_as_it_is(write_gguf):
    path = write_gguf({UP: (weights(), Kind.F32)})
    before = path.read_bytes()
    program = (
        "import sys; from docs_sim.checkpoint import open_checkpoint\n"
        "open_checkpoint(sys.argv[1]).matrices('mlp_up')[0].load().fill_(7)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True)
    assert path.read_bytes() == before


def test_missing_package_names_the_install_command(write_gguf, monkeypatch):
    path = write_gguf({UP: (weights(), Kind.F32)})
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'docs-sim\[gguf\]'") as caught:
        open_checkpoint(path)
    assert "tiny.gguf" in str(caught.value)


def offset_of(path: Path, name: str) -> int:
    """Where the file says at which offset the tensor lies: after its name, dimensions and kind."""
    start = path.read_bytes().index(name.encode()) + len(name)
    dimensions = int.from_bytes(path.read_bytes()[start : start + 4], "little")
    return start + 4 + 8 * dimensions + 4


@pytest.mark.parametrize(("offset", "words"), [(0, "overlap"), (20, "overlap|aligned"), (2**20 + 1, "valid")])
def test_offset_that_leads_elsewhere_is_refused(offset, words, write_gguf):
    down = "blk.0.ffn_down.weight"
    path = write_gguf({UP: (weights(shape=(2, 8)), Kind.F32), down: (weights(shape=(8, 2)), Kind.F32)})
    content, place = bytearray(path.read_bytes()), offset_of(path, down)
    content[place : place + 8] = struct.pack("<Q", offset)
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        open_checkpoint(path)


def test_type_that_is_not_known_is_no_fault_of_the_download(write_gguf):
    path = write_gguf({UP: (weights(shape=(2, 8)), Kind.F32)})
    content, place = bytearray(path.read_bytes()), offset_of(path, UP)
    content[place - 4 : place] = struct.pack("<I", 9999)
    path.write_bytes(content)
    with pytest.raises(InputError, match="type 9999, which is not known; update the package gguf") as caught:
        open_checkpoint(path)
    assert "download" not in str(caught.value)


def test_tensor_that_is_not_aligned_is_refused(write_gguf):
    path = write_gguf({UP: (weights(shape=(2, 8)), Kind.F32)})
    content, place = bytearray(path.read_bytes()), offset_of(path, UP)
    content[place : place + 8] = struct.pack("<Q", 4)
    path.write_bytes(content + bytes(4))
    with pytest.raises(InputError, match="aligned"):
        open_checkpoint(path)


def test_file_of_a_big_endian_machine_is_refused_as_such(write_gguf):
    path = write_gguf({UP: (weights(), Kind.F32)})
    path.write_bytes(b"GGUF" + struct.pack(">I", 3) + path.read_bytes()[8:])
    with pytest.raises(InputError, match="big-endian"):
        open_checkpoint(path)


def test_file_that_is_replaced_after_it_was_opened_is_refused(write_gguf):
    matrix = open_checkpoint(write_gguf({UP: (weights(), Kind.F32)})).matrices("mlp_up")[0]
    path = write_gguf({UP: (2 * weights(), Kind.F32)})
    with pytest.raises(InputError, match="has changed"):
        matrix.load()
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        matrix.load()


def test_tensor_that_is_there_twice_is_refused(write_gguf):
    path = write_gguf({UP: (weights(), Kind.F32), UP.replace("0", "1"): (weights(), Kind.F32)})
    path.write_bytes(path.read_bytes().replace(UP.replace("0", "1").encode(), UP.encode()))
    with pytest.raises(InputError, match="occurs twice"):
        open_checkpoint(path)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0], ids=lambda kind: kind.name)
def test_one_of_stacked_experts_is_read(kind, write_gguf):
    experts = weights(shape=(3, 4, 64))
    router = weights(shape=(3, 64))
    path = write_gguf(
        {
            "blk.0.ffn_up_exps.weight": (gguf.quantize(experts, kind), kind),
            "blk.0.ffn_gate_inp.weight": (router, Kind.F32),
        }
    )
    expected = gguf.dequantize(gguf.quantize(experts, kind), kind)
    for matrix in open_checkpoint(path).matrices("mlp_up"):
        np.testing.assert_array_equal(matrix.load().T.numpy(), expected[matrix.expert])
    assert [matrix.key for matrix in open_checkpoint(path).matrices("mlp_up")][2] == "layers.0.experts.2.mlp_up"
