"""Names -> matrices: the zoo of real layouts bit for bit, and small ones made for a single question."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from naming_checks import check_accounts, out_in, random, reasons, sha256
from safetensors.torch import load_file

from docs_sim.checkpoint import open_checkpoint
from docs_sim.errors import InputError

SHARED = Path(__file__).resolve().parents[3] / "shared"
ZOO = SHARED / "zoo"
FOLDERS = sorted(path.parent.name for path in ZOO.glob("*/truth.json"))
ABSENT = pytest.param("none", marks=pytest.mark.skip(reason=f"no reference checkpoints: {ZOO} is not there"))
RENAMED = (
    "v5_inmemory_mixtral",
    "remote_baichuan",
    "remote_chatglm",
    "remote_internlm2",
    "prefix_bert",
    "prefix_gpt2",
    "prefix_llama_bias",
    "prefix_orig_mod",
    "prefix_qwen2",
    "sharded_llama",
)
OUTSIDE = {"embed", "lm_head"}


@pytest.mark.parametrize("folder", FOLDERS or [ABSENT])
def test_zoo_is_found_whole(folder):
    checkpoint = open_checkpoint(ZOO / folder)
    truth = json.loads((ZOO / folder / "truth.json").read_text())
    assert checkpoint.architecture == truth["architecture"]
    check_accounts(checkpoint)
    found = {matrix.key: matrix for matrix in checkpoint.matrices()}
    assert truth["matrices"].keys() <= found.keys()
    for key, true in truth["matrices"].items():
        assert list(found[key].parts[0].out_in) == true["shape"], key
        assert sha256(out_in(found[key])) == true["sha256"], key
    beyond = {(found[key].block, found[key].name) for key in found.keys() - truth["matrices"].keys() - OUTSIDE}
    assert beyond <= BEYOND_THE_TRUTH.get(folder, set())


# What checkpoints hold and the probes behind the truth did not reach: cross attention that was given no encoder, an
# output gate, routers, experts that no token chose.
BEYOND_THE_TRUTH = {
    **{folder: {(None, f"cross_{side}") for side in "qkvo"} for folder in ("bart", "mbart", "mm_mllama")},
    **{folder: {(None, "attn_gate")} for folder in ("hrm_text", "hy_v4", "minimax")},
    "jetmoe": {(None, "router")},
    "s2s_nllb-moe": {(None, "mlp_up"), (None, "mlp_down")},
}


@pytest.mark.parametrize("folder", RENAMED if FOLDERS else [ABSENT])
def test_renamed_checkpoint_is_found_whole(folder):
    truth = load_file(SHARED / "zoo-variants" / folder / "truth.safetensors")
    checkpoint = open_checkpoint(SHARED / "zoo-variants" / folder)
    check_accounts(checkpoint)
    found = {matrix.key: matrix for matrix in checkpoint.matrices() if matrix.key not in OUTSIDE}
    assert found.keys() == truth.keys()
    assert all(torch.equal(out_in(matrix).float(), truth[key]) for key, matrix in found.items())


def gpt2_tensors(layers: int = 2, width: int = 16, inner: int = 24, kv: int | None = None, *, linear: bool = False):
    """GPT-2 names as its Conv1D stores them, (in, out), or as GPT-BigCode's Linear does."""
    shapes = {
        "attn.c_attn": (width, 3 * width if kv is None else width + 2 * kv),
        "attn.c_proj": (width, width),
        "mlp.c_fc": (width, inner),
        "mlp.c_proj": (inner, width),
    }
    tensors = {"transformer.wte.weight": random(32, width)}
    for layer in range(layers):
        for name, shape in shapes.items():
            tensors[f"transformer.h.{layer}.{name}.weight"] = random(*(shape[::-1] if linear else shape))
            tensors[f"transformer.h.{layer}.{name}.bias"] = random(shape[1])
    return tensors


def bert_tensors(prefix: str = "", layers: int = 2, width: int = 16, inner: int = 24):
    shapes = {
        "attention.self.query": (width, width),
        "attention.self.key": (width, width),
        "attention.self.value": (width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
        "output.LayerNorm": (width,),
    }
    return {
        f"{prefix}encoder.layer.{layer}.{name}.weight": random(*shape)
        for layer in range(layers)
        for name, shape in shapes.items()
    } | {f"{prefix}embeddings.word_embeddings.weight": random(32, width)}


def test_llama(write_model, llama_tensors):
    tensors = llama_tensors() | {"lm_head.weight": random(32, 16)}
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert checkpoint.layout == "llama"
    assert checkpoint.layers == [0, 1, 2]
    names = ("attn_q", "attn_k", "attn_v", "attn_o", "mlp_gate", "mlp_up", "mlp_down")
    keys = [f"layers.{layer}.{name}" for layer in range(3) for name in names]
    assert [matrix.key for matrix in checkpoint.matrices()] == [*keys, "embed", "lm_head"]
    assert {matrix.name: matrix.shape for matrix in checkpoint.matrices()} == {
        **dict.fromkeys(("attn_q", "attn_o"), (16, 16)),
        **dict.fromkeys(("attn_k", "attn_v"), (16, 8)),
        **dict.fromkeys(("mlp_gate", "mlp_up", "mlp_down"), (16, 24)),
        **dict.fromkeys(("embed", "lm_head"), (16, 32)),
    }
    up = checkpoint.matrices("UP")[2]
    assert (up.name, up.layer, up.expert, up.stack, up.dtype) == ("mlp_up", 2, None, None, "BF16")
    assert up.tensors == ("model.layers.2.mlp.up_proj.weight",)
    assert torch.equal(up.load().T, tensors[up.tensors[0]])
    down = checkpoint.matrices("mlp_down")[2]
    assert torch.equal(down.load(), tensors[down.tensors[0]])
    assert all("norm" in name and "vector" in reason for name, reason in reasons(checkpoint).items())


@pytest.mark.parametrize(
    "prefix",
    ["", "model.", "language_model.model.", "model.language_model.", "_orig_mod.model.", "module.", "base.layers."],
)
def test_any_prefix_will_do(prefix, write_model, llama_tensors):
    checkpoint = open_checkpoint(write_model(llama_tensors(prefix=prefix)))
    plain = open_checkpoint(write_model(llama_tensors(prefix=""), "plain"))
    check_accounts(checkpoint)
    assert [matrix.key for matrix in checkpoint.matrices()] == [matrix.key for matrix in plain.matrices()]


def test_layers_are_in_the_order_of_their_numbers(write_model, llama_tensors):
    checkpoint = open_checkpoint(write_model(llama_tensors(12)))
    assert [matrix.layer for matrix in checkpoint.matrices("mlp_up")] == list(range(12))


def test_gpt2_is_stored_the_other_way_round(write_model):
    tensors = gpt2_tensors()
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert checkpoint.layout == "gpt2"
    fused = tensors["transformer.h.1.attn.c_attn.weight"]
    for position, name in enumerate(("attn_q", "attn_k", "attn_v")):
        matrix = checkpoint.matrices(name)[1]
        assert matrix.shape == (16, 16)
        assert torch.equal(matrix.load(), fused[:, 16 * position : 16 * (position + 1)])
    up, down = checkpoint.matrices("mlp_up")[1], checkpoint.matrices("mlp_down")[1]
    assert up.shape == down.shape == (16, 24)
    assert torch.equal(up.load(), tensors["transformer.h.1.mlp.c_fc.weight"])
    assert torch.equal(down.load(), tensors["transformer.h.1.mlp.c_proj.weight"].T)
    assert torch.equal(checkpoint.matrices("attn_o")[1].load(), tensors["transformer.h.1.attn.c_proj.weight"].T)
    assert checkpoint.matrices("embed")[0].shape == (16, 32)


@pytest.mark.parametrize(
    ("inner", "kv"), [(24, 4), (24, None), (16, 4), (16, None)], ids=["mqa", "mha", "mqa square", "mha square"]
)
def test_gpt_bigcode_is_not_read_as_gpt2(inner, kv, write_model):
    tensors = gpt2_tensors(inner=inner, kv=kv, linear=True)
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    correct = {"attn_o": "attn.c_proj", "mlp_up": "mlp.c_fc", "mlp_down": "mlp.c_proj"}
    for matrix in checkpoint.matrices():
        if matrix.name in correct:
            stored = tensors[f"transformer.h.{matrix.layer}.{correct[matrix.name]}.weight"]
            assert torch.equal(out_in(matrix), stored), "a layout of the other orientation was believed"


@pytest.mark.parametrize("prefix", ["", "bert.", "model.bert."])
def test_bert(prefix, write_model):
    tensors = bert_tensors(prefix)
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert checkpoint.layout == "bert"
    assert len(checkpoint.matrices()) == 2 * 6 + 1
    for name, stored in (("attn_q", "attention.self.query"), ("attn_o", "attention.output.dense")):
        matrix = checkpoint.matrices(name)[1]
        assert torch.equal(out_in(matrix), tensors[f"{prefix}encoder.layer.1.{stored}.weight"])
    assert checkpoint.matrices("mlp_up")[0].shape == checkpoint.matrices("mlp_down")[0].shape == (16, 24)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_experts(family, write_model, moe_tensors):
    tensors = moe_tensors(dense=1, sparse=2, experts=11, family=family)
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    ups = [matrix for matrix in checkpoint.matrices("mlp_up") if matrix.layer == 1]
    routed = [matrix for matrix in ups if matrix.expert != "shared"]
    assert [matrix.expert for matrix in routed] == list(range(11))
    assert [matrix.key for matrix in routed] == [f"layers.1.experts.{expert}.mlp_up" for expert in range(11)]
    assert all(matrix.shape == (16, 6) for matrix in routed)
    stored = {"mixtral": "block_sparse_moe.experts.10.w3", "qwen2_moe": "mlp.experts.10.up_proj"}[family]
    assert torch.equal(out_in(routed[10]), tensors[f"model.layers.1.{stored}.weight"])
    shared = [matrix for matrix in ups if matrix.expert == "shared"]
    assert [matrix.key for matrix in shared] == (["layers.1.shared.mlp_up"] if family == "qwen2_moe" else [])
    dense = [matrix for matrix in checkpoint.matrices("mlp_up") if matrix.layer == 0]
    assert [(matrix.key, matrix.expert) for matrix in dense] == [("layers.0.mlp_up", None)]
    assert [matrix.key for matrix in checkpoint.matrices("router")] == ["layers.1.router", "layers.2.router"]
    assert checkpoint.matrices("router")[0].shape == (16, 11)


@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 8), (16, 16), (32, 2), (12, 4)])
def test_fused_attention_is_cut_where_the_heads_are(heads, kv_heads, write_model, llama_tensors):
    tensors = llama_tensors(heads=heads, kv_heads=kv_heads)
    fused = {name: tensor for name, tensor in tensors.items() if not name.endswith(("q_proj.weight", "k_proj.weight"))}
    for layer in range(3):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        fused[f"{attention}.qkv_proj.weight"] = torch.cat([tensors[f"{attention}.{x}_proj.weight"] for x in "qkv"])
        fused[f"{mlp}.gate_up_proj.weight"] = torch.cat([tensors[f"{mlp}.{x}_proj.weight"] for x in ("gate", "up")])
        for gone in (f"{attention}.v_proj", f"{mlp}.gate_proj", f"{mlp}.up_proj"):
            del fused[f"{gone}.weight"]
    checkpoint, plain = open_checkpoint(write_model(fused)), open_checkpoint(write_model(tensors, "plain"))
    check_accounts(checkpoint)
    for one, other in zip(checkpoint.matrices(), plain.matrices(), strict=True):
        assert (one.key, one.shape) == (other.key, other.shape)
        assert torch.equal(one.load(), other.load())
    assert checkpoint.matrices("attn_k")[0].tensors == ("model.layers.0.self_attn.qkv_proj.weight",)


def test_fused_tensor_that_cannot_be_cut_is_unnamed(write_model, llama_tensors):
    name = "model.layers.0.self_attn.qkv_proj.weight"
    checkpoint = open_checkpoint(write_model(llama_tensors() | {name: random(16 + 7, 16)}))
    check_accounts(checkpoint)
    assert "cannot be split" in reasons(checkpoint)[name]


@pytest.mark.parametrize(
    "tower", ["vision_tower.vision_model.encoder.", "visual.blocks.encoder.", "model.audio_tower.", "mtp."]
)
def test_tower_beside_the_language_model_is_set_aside(tower, write_model, llama_tensors):
    language = llama_tensors(prefix="language_model.model.")
    vision = llama_tensors(2, width=8, inner=8, heads=8, kv_heads=8, prefix=tower)
    checkpoint = open_checkpoint(write_model(vision | language))
    check_accounts(checkpoint)
    layered = [matrix for matrix in checkpoint.matrices() if matrix.layer is not None]
    assert len(layered) == 3 * 7
    assert all(name in language for matrix in layered for name in matrix.tensors)
    aside = {name: reason for name, reason in reasons(checkpoint).items() if name in vision and "proj" in name}
    assert len(aside) == 2 * 7
    assert all("another stack" in reason for reason in aside.values())


def test_encoder_and_decoder_are_told_apart(write_model, llama_tensors):
    # DESIGN 5: the key starts with the stack where a model has both; a plain key would name one of them at random.
    both = llama_tensors(prefix="model.encoder.") | llama_tensors(prefix="model.decoder.")
    checkpoint = open_checkpoint(write_model(both))
    check_accounts(checkpoint)
    keys = [matrix.key for matrix in checkpoint.matrices() if matrix.layer is not None]
    assert len(keys) == len(set(keys)) == 2 * 3 * 7
    assert {key.split(".")[0] for key in keys} == {"encoder", "decoder"}


def test_unknown_names_are_all_listed(write_model):
    tensors = {f"body.{layer}.mixer.weight": random(8, 8) for layer in range(3)} | {"norm.weight": random(8)}
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert checkpoint.layout is None
    assert checkpoint.matrices() == []
    assert [one.name for one in checkpoint.unnamed] == list(checkpoint.tensors)
    assert checkpoint.tensors.keys() == tensors.keys()


@pytest.mark.parametrize("shape", [(), (16,), (2, 16, 16), (1, 1, 16, 16)], ids=str)
def test_what_is_no_matrix_is_unnamed(shape, write_model, llama_tensors):
    name = "model.layers.3.mlp.up_proj.weight"
    checkpoint = open_checkpoint(write_model(llama_tensors() | {name: torch.zeros(shape)}))
    check_accounts(checkpoint)
    assert name in reasons(checkpoint)


def test_contradicting_shapes_leave_the_layer_out(write_model, llama_tensors):
    name = "model.layers.1.mlp.down_proj.weight"
    checkpoint = open_checkpoint(write_model(llama_tensors() | {name: random(16, 99)}))
    check_accounts(checkpoint)
    assert [matrix.layer for matrix in checkpoint.matrices("attn_q")] == [0, 2]
    assert "contradict" in reasons(checkpoint)[name]


@pytest.mark.parametrize("number", ["00", "\u0660", "0"])
def test_second_tensor_for_one_key_is_unnamed(number, write_model, llama_tensors):
    twin = f"model.layers.{number}.mlp.up_proj" + (".weight" if number != "0" else "")
    checkpoint = open_checkpoint(write_model(llama_tensors() | {twin: random(24, 16)}))
    check_accounts(checkpoint)


@pytest.mark.parametrize(
    "name",
    [
        f"model.layers.{'9' * 5000}.mlp.up_proj.weight",
        f"model.layers.0.mlp.experts.{'9' * 5000}.up_proj.weight",
        "model.layers.-1.mlp.up_proj.weight",
        "layers.0.",
        ".weight",
        "",
        "\ud800",
    ],
    ids=["layer of 5000 digits", "expert of 5000 digits", "negative", "no path", "suffix", "empty", "surrogate"],
)
def test_hostile_names_are_listed(name, write_raw):
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    checkpoint = open_checkpoint(write_raw({name: entry}, bytes(16)))
    check_accounts(checkpoint)
    assert name in reasons(checkpoint)


@pytest.mark.parametrize(
    "name",
    ["a." * 50_000, "layers.0." * 20_000 + "\n", "layers." * 50_000, ".0" * 50_000],
    ids=["dots", "layers without a path", "layers without numbers", "numbers"],
)
def test_long_names_take_no_long_time(name, write_raw, open_with_little_time):
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    assert open_with_little_time(write_raw({name: entry}, bytes(16))) in ("opened", "refused")


@pytest.mark.parametrize("tower", ["vision", "audio"])
def test_tower_is_chosen(tower, write_model, llama_tensors):
    prefix = {"vision": "model.vision_tower.", "audio": "audio_encoder."}[tower]
    beside = {f"{prefix}{name}": tensor for name, tensor in llama_tensors(2, width=8, heads=8, kv_heads=8).items()}
    directory = write_model(llama_tensors() | beside)
    assert len(open_checkpoint(directory).layers) == 3
    chosen = open_checkpoint(directory, tower=tower)
    check_accounts(chosen)
    assert len(chosen.layers) == 2
    assert all(name.startswith(prefix) for matrix in chosen.matrices() for name in matrix.tensors if matrix.layer)
    with pytest.raises(InputError, match="it has language"):
        open_checkpoint(write_model(llama_tensors(), "alone"), tower=tower)
    with pytest.raises(InputError, match="known: language, vision, audio"):
        open_checkpoint(directory, tower="eiffel")


def test_one_expert_is_read_without_the_others(write_model):
    tensors = {
        "model.layers.0.mlp.experts.gate_up_proj": random(4, 20, 16),
        "model.layers.0.mlp.gate.weight": random(4, 16),
    }
    matrix = open_checkpoint(write_model(tensors)).matrices("mlp_up")[2]
    part, asked = matrix.parts[0], []

    def read(begin: int, end: int) -> torch.Tensor:
        asked.append((begin, end))
        return part.tensor.read(begin, end)

    spied = replace(matrix, parts=(replace(part, tensor=replace(part.tensor, read=read)),))
    assert torch.equal(spied.load(), tensors["model.layers.0.mlp.experts.gate_up_proj"][2, 10:].T)
    assert asked == [(2, 3)]


def test_experts_that_cannot_be_used_are_named_with_the_reason(write_model, moe_tensors):
    tensors = moe_tensors()
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    tensors[name] = tensors[name].unsqueeze(0)
    unnamed = {one.name: one for one in open_checkpoint(write_model(tensors)).unnamed}
    assert unnamed[name].keys == ("layers.1.experts.2.mlp_up",)
    assert "3 dimensions" in unnamed[name].reason


@pytest.mark.parametrize(
    "shapes",
    [
        {"self_attn.qkv_proj": (3, 1), "self_attn.o_proj": (1, 1)},
        {"linear": (1, 1), "shared_transf.self_attn.q_proj": (1, 1)},
    ],
    ids=["fused", "tied"],
)
def test_many_layers_take_no_long_time(shapes, write_raw, open_with_little_time):
    header, position = {}, 0
    for layer in range(20_000):
        for path, shape in shapes.items():
            size = 2 * shape[0]
            entry = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
            header[f"model.layers.{layer}.{path}.weight"] = entry
            position += size
    assert open_with_little_time(write_raw(header, bytes(position))) == "opened"


W, N = 40, 24  # width of the MLP and of the model


@pytest.mark.parametrize("turned", [False, True])
def test_stacked_experts_are_stored_either_way(turned, write_model):
    """Qwen3-VL-MoE is published (in, out) and saved by transformers (out, in), under the same names."""
    gate_up, down = random(3, 2 * W, N), random(3, N, W)
    prefix = "model.layers.0"
    tensors = {
        f"{prefix}.mlp.experts.gate_up_proj": gate_up.transpose(1, 2) if turned else gate_up,
        f"{prefix}.mlp.experts.down_proj": down.transpose(1, 2) if turned else down,
        f"{prefix}.mlp.gate.weight": random(3, N),
    }
    found = {matrix.key: matrix for matrix in open_checkpoint(write_model(tensors)).matrices()}
    for expert in range(3):
        assert torch.equal(found[f"layers.0.experts.{expert}.mlp_up"].load(), gate_up[expert, W:].T)
        assert torch.equal(found[f"layers.0.experts.{expert}.mlp_down"].load(), down[expert])


@pytest.mark.parametrize("shared", [False, True])
def test_stacked_experts_of_ambiguous_shape(shared, write_model):
    """Where twice the inner width is the width, only Llama 4, which has shared experts, stores (in, out)."""
    prefix, whole = "model.layers.0.feed_forward", random(3, 16, 16)
    tensors = {f"{prefix}.experts.gate_up_proj": whole, f"{prefix}.router.weight": random(3, 16)}
    if shared:
        tensors[f"{prefix}.shared_expert.up_proj.weight"] = random(8, 16)
    up = open_checkpoint(write_model(tensors)).matrices("mlp_up")[1]
    assert torch.equal(up.load(), whole[1][:, 8:] if shared else whole[1][8:].T)
