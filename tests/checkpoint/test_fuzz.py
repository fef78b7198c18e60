"""Random and mutated index, config, adapter, layout and GGUF files: read, or refused in one line."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from docs_sim.checkpoint import open_checkpoint
from docs_sim.errors import InputError

UP = "model.layers.0.mlp.up_proj.weight"
fuzz = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def refusal(model: Path | str, **options: object) -> str:
    """The one line that refuses a model, empty if it was read whole; any other error is the test's."""
    try:
        checkpoint = open_checkpoint(model, **options)
        for matrix in checkpoint.matrices():
            matrix.load()
    except InputError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small model in one shard with fused attention."""
    directory = tmp_path_factory.mktemp("fuzz")
    tensors = {
        UP: torch.randn(6, 4),
        "h.0.attn.c_attn.weight": torch.randn(12, 4),
        "h.0.attn.c_proj.weight": torch.eye(4),
    }
    save_file(tensors, directory / "part.safetensors")
    return directory


shard = st.sampled_from(
    ["part.safetensors", "./part.safetensors", "../part.safetensors", "/etc/passwd", "", "a\0", "."]
)


@fuzz
@given(
    index=st.fixed_dictionaries({"weight_map": st.dictionaries(st.sampled_from([UP, "x"]) | st.text(), shard | values)})
    | values
)
def test_index(folder, index):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "\n" not in refusal(folder / "model.safetensors.index.json")


keys = st.sampled_from(["num_attention_heads", "n_head", "text_config", "architectures", "quantization_config"])


@fuzz
@given(config=st.dictionaries(keys | st.text(max_size=4), values | st.dictionaries(keys, values, max_size=2)) | values)
def test_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    assert "\n" not in refusal(folder / "part.safetensors")
    (folder / "config.json").unlink()


OPTIONAL = ("rank_pattern", "alpha_pattern", "target_parameters", "use_rslora", "fan_in_fan_out")
settings_of_adapters = st.fixed_dictionaries(
    {"peft_type": st.just("LORA") | values, "r": st.integers(0, 4), "lora_alpha": st.integers() | values},
    optional=dict.fromkeys(OPTIONAL, values),
)


@fuzz
@given(config=settings_of_adapters, rank=st.integers(0, 4))
def test_adapter(folder, config, rank):
    (folder / "adapter").mkdir(exist_ok=True)
    prefix = "base_model.model.model.layers.0.mlp.up_proj.lora"
    tensors = {
        f"{prefix}_{side}.weight": torch.zeros(shape) for side, shape in {"A": (rank, 4), "B": (6, rank)}.items()
    }
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    assert "\n" not in refusal(f"{folder / 'adapter'}+{folder / 'part.safetensors'}")


WORDS = ("layers", "extends", "dense", "experts", "fused", "in_out", "requires", "outside", "marked", "mlp_up")
words = st.sampled_from(WORDS)
toml = st.lists(st.sampled_from(["= 3", "= ['x']", "= 'llama'", "= {}", "= [['a']]", "", "]"]), max_size=6)


@fuzz
@given(lines=st.lists(st.tuples(st.booleans(), words, toml), max_size=5))
def test_layout(folder, lines):
    text = "\n".join(f"[{word}]" if table else f"{word} {''.join(rest)}" for table, word, rest in lines)
    (folder / "mine.toml").write_text(text)
    assert "\n" not in refusal(folder / "part.safetensors", layout=folder / "mine.toml")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
    writer.add_tensor("blk.0.ffn_up.weight", np.ones((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@fuzz
@given(changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), cut=st.integers(0, 800))
def test_gguf(gguf_file, changes, cut):
    content = bytearray(gguf_file.read_bytes())
    for position, byte in changes:
        content[position % len(content)] = byte
    path = gguf_file.with_name("mutated.gguf")
    path.write_bytes(content[: max(cut, 1)])
    assert "\n" not in refusal(path)
