"""Files and shards -> tensors: mapped, not copied, bit for bit; refused in one line where something is missing."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from docs_sim.checkpoint import open_checkpoint
from docs_sim.checkpoint.header import DTYPES
from docs_sim.errors import InputError

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def sharded(tmp_path, llama_tensors) -> Path:
    """A Llama in two shards with an index."""
    directory = tmp_path / "sharded"
    directory.mkdir()
    tensors = llama_tensors()
    weight_map = {name: SHARDS[position % 2] for position, name in enumerate(tensors)}
    for shard in SHARDS:
        save_file({name: tensors[name] for name, held in weight_map.items() if held == shard}, directory / shard)
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return directory


def change_index(directory: Path, **changes: str) -> None:
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"].update(changes)
    (directory / INDEX).write_text(json.dumps(index))


def test_all_tensors_of_all_shards_are_read(sharded, llama_tensors):
    stored = open_checkpoint(sharded).tensors
    expected = llama_tensors()
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name].load(), tensor) for name, tensor in expected.items())


def test_index_may_be_named_itself(sharded):
    assert open_checkpoint(sharded / INDEX).tensors == open_checkpoint(sharded).tensors
    assert open_checkpoint(sharded / INDEX).name == "sharded"


def test_shards_may_lie_in_a_folder_below(sharded):
    (sharded / "weights").mkdir()
    (sharded / SHARDS[1]).rename(sharded / "weights" / SHARDS[1])
    text = (sharded / INDEX).read_text().replace(SHARDS[1], f"weights/{SHARDS[1]}")
    (sharded / INDEX).write_text(text)
    assert len(open_checkpoint(sharded).layers) == 3


DAMAGE = {
    "missing shard": (lambda d: (d / SHARDS[1]).unlink(), SHARDS[1]),
    "missing shard of a name longer than the system allows": (lambda d: change_index(d, x="s" * 300), "sss"),
    "cut shard": (lambda d: os.truncate(d / SHARDS[0], 3000), SHARDS[0]),
    "shard is an LFS pointer": (
        lambda d: (d / SHARDS[0]).write_text("version https://git-lfs.github.com/spec/v1\n"),
        "git lfs pull",
    ),
    "tensor absent from its shard": (lambda d: change_index(d, ghost=SHARDS[0]), "'ghost'"),
    "shard above the directory": (lambda d: change_index(d, x="../outside.safetensors"), "'../outside.safetensors'"),
    "shard above, hidden": (lambda d: change_index(d, x="weights/../../outside.safetensors"), "outside its directory"),
    "shard at an absolute path": (lambda d: change_index(d, x=str(d.parent / "outside.safetensors")), "outside its"),
    "shard with a backslash": (lambda d: change_index(d, x="..\\outside.safetensors"), "outside its directory"),
    "shard on a drive": (lambda d: change_index(d, x="C:outside.safetensors"), "outside its directory"),
    "shard with a zero byte": (lambda d: change_index(d, x="a\0b"), "outside its directory"),
    "shard without a name": (lambda d: change_index(d, x=""), INDEX),
    "shard is the directory": (lambda d: change_index(d, x="."), INDEX),
    "tensor in two shards, in neither by the index": (
        lambda d: [save_file({"x": torch.zeros(1)} | load_file(d / shard), d / shard) for shard in SHARDS],
        f"{SHARDS[0]} and {SHARDS[1]}",
    ),
    "index not JSON": (lambda d: (d / INDEX).write_text("{'weight_map': {}}"), "not valid JSON"),
    "index empty": (lambda d: (d / INDEX).write_text(""), "not valid JSON"),
    "index not UTF-8": (lambda d: (d / INDEX).write_bytes(b'{"weight_map": "\xff"}'), "not valid JSON"),
    "index nested without end": (lambda d: (d / INDEX).write_text("[" * 100_000), "not valid JSON"),
    "index an array": (lambda d: (d / INDEX).write_text("[]"), "list"),
    "no weight_map": (lambda d: (d / INDEX).write_text("{}"), "weight_map"),
    "weight_map an array": (lambda d: (d / INDEX).write_text('{"weight_map": ["a"]}'), "weight_map"),
    "weight_map of numbers": (lambda d: (d / INDEX).write_text('{"weight_map": {"a": 1}}'), "weight_map"),
    "index of 200 MB": (lambda d: os.truncate(d / INDEX, 200_000_000), "100,000,000"),
    "config not JSON": (lambda d: (d / "config.json").write_text("{"), "config.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shards_are_refused_in_one_line(damage, sharded, llama_tensors):
    save_file(llama_tensors(), sharded.parent / "outside.safetensors")
    act, words = DAMAGE[damage]
    act(sharded)
    with pytest.raises(InputError) as caught:
        open_checkpoint(sharded)
    assert words in str(caught.value)
    assert str(sharded) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_copy_in_another_shard_than_the_index_says_is_listed(sharded):
    expected = open_checkpoint(sharded).tensors[Q_PROJ].load()
    save_file({Q_PROJ: 2 * expected} | load_file(sharded / SHARDS[1]), sharded / SHARDS[1])
    checkpoint = open_checkpoint(sharded)
    assert torch.equal(checkpoint.matrices("attn_q")[0].load().T, expected)
    assert any(Q_PROJ in one.name and SHARDS[1] in one.name for one in checkpoint.unnamed)


def test_tensor_that_the_index_forgets_is_not_lost_silently(sharded):
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"][Q_PROJ]
    (sharded / INDEX).write_text(json.dumps(index))
    assert Q_PROJ in open_checkpoint(sharded).tensors


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "LlamaForCausalLM"),
        ({"model_type": "llama"}, "llama"),
        ({"architectures": [], "model_type": "llama"}, "llama"),
        ({"architectures": [3]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_architecture_is_what_the_config_says(config, expected, write_model, llama_tensors):
    assert open_checkpoint(write_model(llama_tensors(), config=config)).architecture == expected


def test_config_may_begin_with_a_byte_order_mark(write_model, llama_tensors):
    directory = write_model(llama_tensors())
    (directory / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8-sig")
    assert open_checkpoint(directory).architecture == "llama"


def test_checkpoint_shows_itself_in_one_line(write_model, llama_tensors):
    assert len(repr(open_checkpoint(write_model(llama_tensors())))) < 400


def test_checkpoint_dtype_is_that_of_most_bytes(write_model, llama_tensors):
    tensors = llama_tensors(dtype=torch.float16) | {"extra": torch.zeros(2, dtype=torch.float64)}
    assert open_checkpoint(write_model(tensors)).dtype == "F16"


def random_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bits at all: NaN with payloads, infinities, subnormal numbers, both zeros."""
    count = torch.Size(shape).numel() * dtype.itemsize
    return (
        torch.randint(256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        .view(dtype)
        .view(shape)
    )


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_float_type_loads_bit_for_bit(dtype, write_model):
    stored = random_bits(dtype, (24, 16))
    matrix = open_checkpoint(write_model({Q_PROJ: stored})).matrices("attn_q")[0]
    assert matrix.load().dtype == dtype
    assert matrix.load().shape == matrix.shape == (16, 24)
    assert bits(matrix.load().T) == bits(stored)


def test_tensor_at_an_odd_position_loads_bit_for_bit(write_raw):
    stored = random_bits(torch.float32, (3, 2))
    header = json.dumps({Q_PROJ: {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}}).encode()
    path = write_raw(header + b" " * (len(header) % 2 == 0), stored.numpy().tobytes())
    assert (path.stat().st_size - 24) % 2 == 1
    assert bits(open_checkpoint(path).matrices("attn_q")[0].load().T) == bits(stored)


def test_writing_to_a_loaded_matrix_leaves_the_file_as_it_is(write_model, llama_tensors):
    directory = write_model(llama_tensors())
    before = (directory / "model.safetensors").read_bytes()
    matrix = open_checkpoint(directory).matrices("attn_q")[0]
    matrix.load().fill_(7)
    assert (directory / "model.safetensors").read_bytes() == before
    assert torch.equal(matrix.load().T, llama_tensors()[Q_PROJ])


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map of the process")
@pytest.mark.parametrize("name", ["attn_q", "mlp_down"])
def test_loaded_matrix_is_a_mapping_of_the_file(name, write_model, llama_tensors):
    directory = write_model(llama_tensors())
    loaded = open_checkpoint(directory).matrices(name)[1].load()
    mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [[int(end, 16) for end in line[0].split("-")] for line in mappings if str(directory) in line[-1]]
    assert any(start <= loaded.data_ptr() < stop for start, stop in spans)


def test_loaded_matrix_outlives_its_checkpoint(write_model, llama_tensors):
    loaded = open_checkpoint(write_model(llama_tensors())).matrices("attn_q")[0].load()
    assert torch.equal(loaded.T.clone(), llama_tensors()[Q_PROJ])


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda path: os.truncate(path, 500), "has changed"),
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: os.utime(path, (1, 1)), "has changed"),
        (lambda path: shutil.copy2(path, path.with_name("new")) and path.with_name("new").replace(path), "has changed"),
    ],
    ids=["shrunk", "deleted", "written", "replaced by its like"],
)
def test_file_that_changes_after_it_was_opened_is_refused(act, words, write_model, llama_tensors):
    directory = write_model(llama_tensors())
    matrix = open_checkpoint(directory).matrices("attn_q")[-1]
    act(directory / "model.safetensors")
    with pytest.raises(InputError, match=words) as caught:
        matrix.load()
    assert str(directory / "model.safetensors") in str(caught.value)


@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - {"F64", "F32", "F16", "BF16"}))
def test_storage_that_stands_for_other_numbers_is_refused_by_name(dtype, write_raw):
    payload = bytes(8 * 8 * DTYPES[dtype] // 8)
    header = {Q_PROJ: {"dtype": dtype, "shape": [8, 8], "data_offsets": [0, len(payload)]}}
    path = write_raw(header, payload)
    matrix = open_checkpoint(path).matrices("attn_q")[0]
    with pytest.raises(InputError, match=rf"{dtype}\b") as caught:
        matrix.load()
    assert str(path) in str(caught.value)
    assert Q_PROJ in str(caught.value)
