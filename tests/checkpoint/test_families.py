"""Families that no reference checkpoint shows: names -> which rows of which tensor are which matrix."""

import pytest
import torch
from naming_checks import check_accounts, out_in, random, reasons

from docs_sim.checkpoint import open_checkpoint

H, D, N, W = 4, 6, 24, 40  # heads, their width, the width of the model, that of the MLP


def blocks(*sizes: int) -> list[slice]:
    ends = [sum(sizes[: count + 1]) for count in range(len(sizes))]
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def by_group(groups: int) -> list[list[int]]:
    """Rows of queries, keys and values where each key head is stored with its query heads before it."""
    each = H // groups * D
    rows: list[list[int]] = [[], [], []]
    for group in range(groups):
        start = group * (each + 2 * D)
        rows[0] += range(start, start + each)
        rows[1] += range(start + each, start + each + D)
        rows[2] += range(start + each + D, start + each + 2 * D)
    return rows


# Architectures that no reference checkpoint shows: layer prefix, tensors, and which rows of which are which matrix.
FAMILIES = {
    "Falcon with groups": (
        "transformer.h",
        {"self_attention.query_key_value": (H * D + 4 * D, N), "self_attention.dense": (N, H * D)},
        {"self_attention.query_key_value": dict(zip(("attn_q", "attn_k", "attn_v"), by_group(2), strict=True))},
    ),
    "Falcon with one key": (
        "transformer.h",
        {"self_attention.query_key_value": (H * D + 2 * D, N), "self_attention.dense": (N, H * D)},
        {"self_attention.query_key_value": dict(zip(("attn_q", "attn_k", "attn_v"), by_group(1), strict=True))},
    ),
    "StarCoder with all keys": (
        "transformer.h",
        {"attn.c_attn": (3 * N, N), "attn.c_proj": (N, N), "mlp.c_fc": (W, N), "mlp.c_proj": (N, W)},
        {"attn.c_attn": dict(zip(("attn_q", "attn_k", "attn_v"), by_group(4), strict=True))},
    ),
    "Qwen 1": (
        "transformer.h",
        {"attn.c_attn": (3 * N, N), "attn.c_proj": (N, N), "mlp.w1": (W, N), "mlp.w2": (W, N), "mlp.c_proj": (N, W)},
        {
            "attn.c_attn": dict(zip(("attn_q", "attn_k", "attn_v"), blocks(N, N, N), strict=True)),
            "mlp.w1": {"mlp_up": slice(None)},
            "mlp.w2": {"mlp_gate": slice(None)},
        },
    ),
    "OLMo 1": (
        "model.transformer.blocks",
        {"att_proj": (N + 12, N), "attn_out": (N, N), "ff_proj": (2 * W, N), "ff_out": (N, W)},
        {
            "att_proj": dict(zip(("attn_q", "attn_k", "attn_v"), blocks(N, 6, 6), strict=True)),
            "ff_proj": dict(zip(("mlp_up", "mlp_gate"), blocks(W, W), strict=True)),
        },
    ),
    "OpenELM": (
        "transformer.layers",
        {"attn.qkv_proj": (18 + 12, N), "attn.out_proj": (N, 18), "ffn.proj_1": (2 * W, N), "ffn.proj_2": (N, W)},
        {
            "attn.qkv_proj": dict(zip(("attn_q", "attn_k", "attn_v"), blocks(18, 6, 6), strict=True)),
            "ffn.proj_1": dict(zip(("mlp_gate", "mlp_up"), blocks(W, W), strict=True)),
        },
    ),
    "ModernBERT": (
        "model.layers",
        {"attn.Wqkv": (3 * N, N), "attn.Wo": (N, N), "mlp.Wi": (2 * W, N), "mlp.Wo": (N, W)},
        {
            "attn.Wqkv": dict(zip(("attn_q", "attn_k", "attn_v"), blocks(N, N, N), strict=True)),
            "mlp.Wi": dict(zip(("mlp_gate", "mlp_up"), blocks(W, W), strict=True)),
        },
    ),
    "Nomic": (
        "encoder.layers",
        {"attn.Wqkv": (3 * N, N), "attn.out_proj": (N, N), "mlp.fc11": (W, N), "mlp.fc12": (W, N), "mlp.fc2": (N, W)},
        {"mlp.fc11": {"mlp_up": slice(None)}, "mlp.fc12": {"mlp_gate": slice(None)}},
    ),
    "Jina": (
        "roberta.encoder.layers",
        {"mixer.Wqkv": (3 * N, N), "mixer.out_proj": (N, N), "mlp.fc1": (W, N), "mlp.fc2": (N, W)},
        {"mixer.Wqkv": dict(zip(("attn_q", "attn_k", "attn_v"), blocks(N, N, N), strict=True))},
    ),
    "TeleChat": (
        "transformer.h",
        {
            "self_attention.query": (N, N),
            "self_attention.key_value": (2 * N, N),
            "self_attention.dense": (N, N),
            "mlp.gate_proj": (W, N),
            "mlp.up_proj": (W, N),
            "mlp.down_proj": (N, W),
        },
        {
            "self_attention.key_value": {
                "attn_k": [row for head in range(H) for row in range(2 * D * head, 2 * D * head + D)],
                "attn_v": [row for head in range(H) for row in range(2 * D * head + D, 2 * D * (head + 1))],
            }
        },
    ),
    "EXAONE": (
        "transformer.h",
        {
            "attn.attention.q_proj": (N, N),
            "attn.attention.k_proj": (12, N),
            "attn.attention.v_proj": (12, N),
            "attn.attention.out_proj": (N, N),
            "mlp.c_fc_0": (W, N),
            "mlp.c_fc_1": (W, N),
            "mlp.c_proj": (N, W),
        },
        {"mlp.c_fc_0": {"mlp_gate": slice(None)}, "mlp.c_fc_1": {"mlp_up": slice(None)}},
    ),
    "original Llama": (
        "layers",
        {
            "attention.wq": (N, N),
            "attention.wk": (12, N),
            "attention.wv": (12, N),
            "attention.wo": (N, N),
            "feed_forward.w1": (W, N),
            "feed_forward.w3": (W, N),
            "feed_forward.w2": (N, W),
        },
        {"feed_forward.w1": {"mlp_gate": slice(None)}, "feed_forward.w3": {"mlp_up": slice(None)}},
    ),
    "OPT": (
        "model.decoder.layers",
        {
            "self_attn.q_proj": (N, N),
            "self_attn.k_proj": (N, N),
            "self_attn.v_proj": (N, N),
            "self_attn.out_proj": (N, N),
            "fc1": (W, N),
            "fc2": (N, W),
        },
        {"fc1": {"mlp_up": slice(None)}, "fc2": {"mlp_down": slice(None)}},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_without_a_reference(family, write_model):
    prefix, shapes, expected = FAMILIES[family]
    tensors = {
        f"{prefix}.{layer}.{path}.weight": random(*shape) for layer in range(2) for path, shape in shapes.items()
    }
    checkpoint = open_checkpoint(write_model(tensors, config={"num_attention_heads": H}))
    check_accounts(checkpoint)
    assert checkpoint.unnamed == ()
    found = {matrix.key: matrix for matrix in checkpoint.matrices()}
    for layer in range(2):
        for path, parts in expected.items():
            for name, rows in parts.items():
                true = tensors[f"{prefix}.{layer}.{path}.weight"][rows]
                assert torch.equal(out_in(found[f"layers.{layer}.{name}"]), true), (path, name)


def four(prefix: str, q: str = "q_proj", k: str = "k_proj", v: str = "v_proj", o: str = "o_proj", *, to: str = "attn"):
    """Paths of an attention in four tensors."""
    return {f"{prefix}{path}": f"{to}_{side}" for side, path in zip("qkvo", (q, k, v, o), strict=True)}


BERT = ("query", "key", "value")
QKV = "attn_q attn_k attn_v"
FC = {"mlp.fc1": "mlp_up", "mlp.fc2": "mlp_down"}
GATED = {f"{name}_proj": f"mlp_{name}" for name in ("gate", "up", "down")}
GATED_MLP = {f"mlp.{path}": name for path, name in GATED.items()}

# Layer prefix, and path inside a layer -> the matrices that it holds, side by side.
NAMES = {
    "ViT": ("encoder.layer", four("attention.") | FC),
    "DINOv2": ("encoder.layer", four("attention.", *(f"attention.{x}" for x in BERT), "output.dense") | FC),
    "DINOv2 with gates": (
        "encoder.layer",
        four("attention.", *(f"attention.{x}" for x in BERT), "output.dense")
        | {"mlp.weights_in": "mlp_gate mlp_up", "mlp.weights_out": "mlp_down"},
    ),
    "DINOv2 as first published": (
        "blocks",
        {"attn.qkv": QKV, "attn.proj": "attn_o", "mlp.w12": "mlp_gate mlp_up", "mlp.w3": "mlp_down"},
    ),
    "DINOv3": ("model.layer", four("attention.") | GATED_MLP),
    "AIMv2": (
        "encoder.layers",
        four("attention.", o="out_proj") | {f"ffn.{path}": name for path, name in GATED.items()},
    ),
    "InternVL": ("encoder.layer", four("attention.", o="projection_layer") | FC),
    "V-JEPA 2": ("encoder.layer", four("attention.", *BERT, "proj") | FC),
    "BLIP-2": ("vision_model.encoder.layers", {"self_attn.qkv": QKV, "self_attn.projection": "attn_o"} | FC),
    "SAM": (
        "vision_encoder.layers",
        {"attn.qkv": QKV, "attn.proj": "attn_o", "mlp.lin1": "mlp_up", "mlp.lin2": "mlp_down"},
    ),
    "SAM 2": (
        "backbone.blocks",
        {"attn.qkv": QKV, "attn.proj": "attn_o", "mlp.proj_in": "mlp_up", "mlp.proj_out": "mlp_down"},
    ),
    "ViTDet": ("encoder.layer", {"attention.qkv": QKV, "attention.proj": "attn_o"} | FC),
    "Kimi": ("vision_tower.layers", four("attn.", o="proj") | FC),
    "Qwen2.5-Omni": ("visual.blocks", four("attn.", "q", "k", "v", "proj") | GATED_MLP),
    "Q-Former": (
        "qformer.encoder.layer",
        four("attention.", *(f"attention.{x}" for x in BERT), "output.dense")
        | four("crossattention.", *(f"attention.{x}" for x in BERT), "output.dense", to="cross")
        | {"intermediate_query.dense": "mlp_up", "output_query.dense": "mlp_down"},
    ),
    "BERT in layers": (
        "text_model.encoder.layers",
        four("attention.", *(f"self.{x}" for x in BERT), "output.dense")
        | {"intermediate.dense": "mlp_up", "output.dense": "mlp_down"},
    ),
    "SpeechT5": (
        "decoder.wrapped_decoder.layers",
        four("self_attn.", o="out_proj")
        | four("encoder_attn.", o="out_proj", to="cross")
        | {"feed_forward.intermediate_dense": "mlp_up", "feed_forward.output_dense": "mlp_down"},
    ),
    "Cosmos 3": ("model.layers", four("self_attn.", "to_q", "to_k", "to_v", "to_out") | GATED_MLP),
    "MiniMax M3": (
        "model.layers",
        {"mlp.shared_experts.gate_up_proj": "shared.mlp_gate shared.mlp_up"}
        | {"mlp.shared_experts.down_proj": "shared.mlp_down"},
    ),
    "Switch without experts": (
        "decoder.block",
        four("layer.0.SelfAttention.", *"qkvo")
        | four("layer.1.EncDecAttention.", *"qkvo", to="cross")
        | {"layer.2.mlp.wi": "mlp_up", "layer.2.mlp.wo": "mlp_down"},
    ),
    "PatchTST": ("encoder.layers", four("self_attn.", o="out_proj") | {"ff.0": "mlp_up", "ff.3": "mlp_down"}),
    "CLVP text": (
        "text_encoder_model.layers",
        four("self_attn.", o="out_proj") | {"mlp.fc1.proj": "mlp_up mlp_gate", "mlp.fc2": "mlp_down"},
    ),
    "Gemma 3n sound": ("tower.conformer", four("attention.", *(f"attn.{x}_proj" for x in "qkv"), "post")),
    "Pix2Struct": (
        "encoder.layer",
        four("attention.", *BERT, "output") | {"mlp.wi_0": "mlp_gate", "mlp.wi_1": "mlp_up", "mlp.wo": "mlp_down"},
    ),
    "OpenCLIP": (
        "visual.transformer.resblocks",
        {"attn.in_proj_weight": QKV, "attn.out_proj": "attn_o", "mlp.c_fc": "mlp_up", "mlp.c_proj": "mlp_down"},
    ),
    "TimeSformer": (
        "encoder.layer",
        {"attention.attention.qkv": QKV, "attention.output.dense": "attn_o"}
        | {"intermediate.dense": "mlp_up", "output.dense": "mlp_down"},
    ),
    "Perceiver": (
        "encoder.self_attends",
        four("attention.", *(f"self.{x}" for x in BERT), "output.dense")
        | {"mlp.dense1": "mlp_up", "mlp.dense2": "mlp_down"},
    ),
    "TVP": (
        "encoder.layer",
        four("attention.", *BERT, "dense") | {"intermediate.dense": "mlp_up", "output.dense": "mlp_down"},
    ),
    "torch": (
        "decoder.layers",
        {"self_attn.in_proj_weight": QKV, "self_attn.out_proj": "attn_o", "linear1": "mlp_up", "linear2": "mlp_down"}
        | {"multihead_attn.in_proj_weight": "cross_q cross_k cross_v", "multihead_attn.out_proj": "cross_o"},
    ),
    "Wav2Vec2": (
        "encoder.layers",
        four("attention.", o="out_proj")
        | {"feed_forward.intermediate_dense": "mlp_up", "feed_forward.output_dense": "mlp_down"},
    ),
    "Wav2Vec2-BERT": (
        "encoder.layers",
        four("self_attn.linear_", *"qkv", "out")
        | {f"ffn{n}.intermediate_dense": f"sub{n}.mlp_up" for n in (1, 2)}
        | {f"ffn{n}.output_dense": f"sub{n}.mlp_down" for n in (1, 2)},
    ),
    "Parakeet": (
        "encoder.layers",
        four("self_attn.")
        | {f"feed_forward{n}.linear1": f"sub{n}.mlp_up" for n in (1, 2)}
        | {f"feed_forward{n}.linear2": f"sub{n}.mlp_down" for n in (1, 2)},
    ),
    "Granite Speech": (
        "encoder.layers",
        {"attn.to_q": "attn_q", "attn.to_kv": "attn_k attn_v", "attn.to_out": "attn_o"}
        | {"ff1.up_proj": "sub1.mlp_up", "ff1.down_proj": "sub1.mlp_down"},
    ),
    "Gemma 4 vision": (
        "encoder.layers",
        four("self_attn.", *(f"{x}_proj.linear" for x in "qkvo"))
        | {f"mlp.{path}.linear": name for path, name in GATED.items()},
    ),
    "Moshi": (
        "decoder.model.layers",
        four("self_attn.", *(f"{x}_proj.linear" for x in "qkvo"))
        | {"mlp.fc1": "mlp_gate mlp_up", "mlp.fc2": "mlp_down"},
    ),
    "Moonshine": (
        "model.decoder.layers",
        four("self_attn.") | four("encoder_attn.", to="cross") | {"mlp.fc1": "mlp_up mlp_gate", "mlp.fc2": "mlp_down"},
    ),
    "Bark": (
        "semantic.layers",
        {"attn.att_proj": QKV, "attn.out_proj": "attn_o", "mlp.in_proj": "mlp_up", "mlp.out_proj": "mlp_down"},
    ),
    "Dia": (
        "decoder.layers",
        four("self_attention.")
        | four("cross_attention.", to="cross")
        | {"mlp.gate_up_proj": "mlp_gate mlp_up", "mlp.down_proj": "mlp_down"},
    ),
    "NeMo": (
        "_decoder.layers",
        four("first_sub_layer.", "query_net", "key_net", "value_net", "out_projection")
        | four("second_sub_layer.", "query_net", "key_net", "value_net", "out_projection", to="cross")
        | {"third_sub_layer.dense_in": "mlp_up", "third_sub_layer.dense_out": "mlp_down"},
    ),
    "RecurrentGemma": (
        "model.layers",
        four("temporal_block.") | {f"mlp_block.{path}": name for path, name in GATED.items()},
    ),
    "Nemotron-H": ("backbone.layers", four("mixer.") | {"mixer.up_proj": "mlp_up", "mixer.down_proj": "mlp_down"}),
    "Funnel": (
        "decoder.layers",
        four("attention.", "q_head", "k_head", "v_head", "post_proj")
        | {"ffn.linear_1": "mlp_up", "ffn.linear_2": "mlp_down"},
    ),
    "LED": (
        "led.encoder.layers",
        four("self_attn.", *(f"longformer_self_attn.{x}" for x in BERT), "output")
        | {"fc1": "mlp_up", "fc2": "mlp_down"},
    ),
    "BigBird-Pegasus": (
        "model.encoder.layers",
        four("self_attn.", *(f"self.{x}" for x in BERT), "output") | {"fc1": "mlp_up", "fc2": "mlp_down"},
    ),
    "ModernBERT decoder": (
        "model.layers",
        four("attn.", o="Wo") | {"mlp.Wi": "mlp_gate mlp_up", "mlp.Wo": "mlp_down"},
    ),
    "Molmo 2": (
        "model.transformer.blocks",
        {"self_attn.att_proj": QKV, "self_attn.attn_out": "attn_o"}
        | {"mlp.ff_proj": "mlp_up mlp_gate", "mlp.ff_out": "mlp_down"},
    ),
    "DeepSeek as published": (
        "layers",
        {"attn.wq_a": "attn_q_a", "ffn.gate": "router"}
        | {f"ffn.experts.1.{path}": f"experts.1.mlp_{name}" for path, name in (("w1", "gate"), ("w3", "up"))}
        | {f"ffn.shared_experts.{path}": f"shared.mlp_{name}" for path, name in (("w1", "gate"), ("w2", "down"))},
    ),
    "Mistral Large 3": (
        "layers",
        {"attention.wq_a": "attn_q_a", "attention.wkv_a_with_mqa": "attn_kv_a", "experts.0.w3": "experts.0.mlp_up"}
        | {"shared_experts.w1": "shared.mlp_gate", "shared_experts.w3": "shared.mlp_up"},
    ),
    "TimesFM": ("stacked_xf.layers", four("self_attn.") | {"mlp.ff0": "mlp_up", "mlp.ff1": "mlp_down"}),
}


def shape_of(key: str) -> tuple[int, int]:
    """(out, in) of a matrix in these tests."""
    name = key.rpartition(".")[2]
    return {"mlp_gate": (W, N), "mlp_up": (W, N), "mlp_down": (N, W)}.get(name, (N, N))


def stored(prefix: str, layer: int | str, paths: dict[str, str]) -> dict[str, torch.Tensor]:
    """A random tensor for each path, as long as its matrices together."""
    shapes = {path: [shape_of(key) for key in keys.split()] for path, keys in paths.items()}
    return {
        f"{prefix}.{layer}.{path}" + ("" if path.endswith("_weight") else ".weight"): random(
            sum(out for out, _ in each), each[0][1]
        )
        for path, each in shapes.items()
    }


@pytest.mark.parametrize("family", NAMES)
def test_names_of_a_family(family, write_model):
    prefix, paths = NAMES[family]
    tensors = stored(prefix, 0, paths) | stored(prefix, 1, paths)
    tower = "vision" if "visi" in prefix or "visual" in prefix else "language"
    checkpoint = open_checkpoint(write_model(tensors), tower=tower)
    check_accounts(checkpoint)
    assert reasons(checkpoint) == {}
    found = {matrix.key: out_in(matrix) for matrix in checkpoint.matrices()}
    expected = {}
    for layer in range(2):
        for keys, tensor in zip(paths.values(), stored_in_order(tensors, prefix, layer), strict=True):
            rows = tensor.split([shape_of(key)[0] for key in keys.split()])
            expected |= {f"layers.{layer}.{key}": part for key, part in zip(keys.split(), rows, strict=True)}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def stored_in_order(tensors: dict[str, torch.Tensor], prefix: str, layer: int) -> list[torch.Tensor]:
    return [tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.{layer}.")]


SWIN = four("attention.", *(f"self.{x}" for x in BERT), "output.dense") | {
    "intermediate.dense": "mlp_up",
    "output.dense": "mlp_down",
}
# Layers that are numbered within stages; the width doubles from one to the next.
STAGED = {
    "Swin": ("encoder.layers.{stage}.blocks", SWIN),
    "Swin in memory": ("encoder.layers.{stage}.blocks", four("attention.") | FC),
    "SegFormer": ("stages.{stage}.blocks", four("attention.") | FC),
    "Hiera": ("encoder.stages.{stage}.layers", {"attn.qkv": QKV, "attn.proj": "attn_o"} | FC),
    "GroupViT": ("encoder.stages.{stage}.layers", four("self_attn.", o="out_proj") | FC),
    "PVT": (
        "encoder.block.{stage}",
        four("attention.", *(f"self.{x}" for x in BERT), "output.dense")
        | {"mlp.dense1": "mlp_up", "mlp.dense2": "mlp_down"},
    ),
    "Funnel": (
        "encoder.blocks.{stage}",
        four("attention.", "q_head", "k_head", "v_head", "post_proj")
        | {"ffn.linear_1": "mlp_up", "ffn.linear_2": "mlp_down"},
    ),
}


@pytest.mark.parametrize("family", STAGED)
def test_layers_in_stages_are_numbered_through(family, write_model):
    template, paths = STAGED[family]
    tensors = {}
    for stage in (0, 1, 10):  # in the order of numbers, not of letters
        for block in range(2):
            each = stored(template.format(stage=stage), block, paths)
            wide = 2 if stage else 1
            tensors |= {name: tensor.repeat(wide, wide) * (stage * 2 + block + 1) for name, tensor in each.items()}
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert reasons(checkpoint) == {}
    assert checkpoint.layers == [0, 1, 2, 3, 4, 5]
    path = next(path for path, key in paths.items() if key == "mlp_up")
    for layer, (stage, block) in enumerate((stage, block) for stage in (0, 1, 10) for block in range(2)):
        true = tensors[f"{template.format(stage=stage)}.{block}.{path}.weight"]
        assert torch.equal(out_in(checkpoint.matrices("mlp_up")[layer]), true)


def bert_layer(values: int, query: int, **others: tuple[int, ...]) -> dict[str, torch.Tensor]:
    shapes = {
        "attention.self.query": (query, N),
        "attention.self.key": (query, N),
        "attention.self.value": (query, values),
        "attention.output.dense": (N, N),
        "intermediate.dense": (W, N),
        "output.dense": (N, W),
    } | {name.replace("__", "."): shape for name, shape in others.items()}
    return {f"encoder.layer.0.{path}.weight": random(*shape) for path, shape in shapes.items()}


def test_mobilebert_reads_values_from_outside_its_bottleneck(write_model):
    mlps = {f"ffn__{n}__{path}": shape for n in (0, 1) for path, shape in (("intermediate__dense", (W, N)),)}
    mlps |= {f"ffn__{n}__output__dense": (N, W) for n in (0, 1)}
    tensors = bert_layer(3 * N, N, bottleneck__input__dense=(N, 3 * N), output__bottleneck__dense=(3 * N, N), **mlps)
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    found = {matrix.key: out_in(matrix) for matrix in checkpoint.matrices()}
    assert torch.equal(found["layers.0.attn_v"], tensors["encoder.layer.0.attention.self.value.weight"])
    assert torch.equal(found["layers.0.mlp_up"], tensors["encoder.layer.0.intermediate.dense.weight"])
    assert torch.equal(found["layers.0.sub1.mlp_down"], tensors["encoder.layer.0.ffn.1.output.dense.weight"])
    assert set(reasons(checkpoint).values()) == {"part of a bottleneck"}


def test_convbert_projects_heads_of_attention_and_of_a_convolution(write_model):
    tensors = bert_layer(N, N // 2, attention__self__conv_out_layer=(N // 2, N))
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert {matrix.name: matrix.shape for matrix in checkpoint.matrices()} == {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v"), (N, N // 2)),
        "attn_o": (N, N),
        **dict.fromkeys(("mlp_up", "mlp_down"), (N, W)),
    }
    assert list(reasons(checkpoint).values()) == ["part of a convolution"]


def test_recurrent_layers_have_an_mlp_and_no_attention(write_model):
    attention, mlp = four("temporal_block."), {f"mlp_block.{path}": name for path, name in GATED.items()}
    recurrent = {f"temporal_block.linear_{side}": "attn_q" for side in ("x", "y", "out")}
    tensors = stored("model.layers", 0, recurrent | mlp) | stored("model.layers", 1, attention | mlp)
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert [matrix.layer for matrix in checkpoint.matrices("attn_q")] == [1]
    assert [matrix.layer for matrix in checkpoint.matrices("mlp_up")] == [0, 1]
    assert set(reasons(checkpoint).values()) == {"part of a recurrent block"}


def test_grouped_convolutions_of_squeezebert_are_listed(write_model):
    paths = (*(f"attention.{x}" for x in BERT), "post_attention.conv1d", "intermediate.conv1d", "output.conv1d")
    tensors = {f"encoder.layers.0.{path}.weight": random(N, N // 4, 1) for path in paths}
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert checkpoint.matrices() == []
    assert all("3 dimensions, as a convolution" in reason for reason in reasons(checkpoint).values())
    assert {key for one in checkpoint.unnamed for key in one.keys} == {f"layers.0.{key}" for key in SWIN.values()}


def test_clvp_stores_its_mlp_the_other_way_round(write_model):
    tensors = stored("decoder.layers", 0, four("attn.", o="out_proj"))
    tensors |= {"decoder.layers.0.mlp.c_fc.weight": random(N, W), "decoder.layers.0.mlp.c_proj.weight": random(W, N)}
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    up, down = checkpoint.matrices("mlp_up")[0], checkpoint.matrices("mlp_down")[0]
    assert torch.equal(up.load(), tensors["decoder.layers.0.mlp.c_fc.weight"])
    assert torch.equal(down.load(), tensors["decoder.layers.0.mlp.c_proj.weight"].T)


def test_attention_sinks_do_not_make_a_gpt_oss(write_model):
    """DeepSeek-V4 has sinks too, and its experts hold gate before up; in GPT-OSS rows of them alternate."""
    whole, prefix = random(3, 2 * W, N), "model.layers.0"
    tensors = {
        f"{prefix}.self_attn.sinks": random(4),
        f"{prefix}.mlp.gate.weight": random(3, N),
        f"{prefix}.mlp.experts.gate_up_proj": whole,
    }
    up = open_checkpoint(write_model(tensors)).matrices("mlp_up")[1]
    assert torch.equal(up.load(), whole[1][W:].T)


@pytest.mark.parametrize("model_type", ["gpt_oss", "openai_privacy_filter", ["openai_privacy_filter"], None])
def test_only_the_config_tells_the_privacy_filter_from_gpt_oss(model_type, write_model):
    whole, prefix = random(3, 2 * W, N), "model.layers.0"
    tensors = {
        f"{prefix}.mlp.router.weight": random(3, N),
        f"{prefix}.mlp.experts.gate_up_proj": whole.transpose(1, 2),
        f"{prefix}.mlp.experts.gate_up_proj_bias": random(3, 2 * W),
    }
    up = open_checkpoint(write_model(tensors, config={"model_type": model_type})).matrices("mlp_up")[1]
    assert torch.equal(up.load(), (whole[1][W:] if model_type == "openai_privacy_filter" else whole[1][1::2]).T)


@pytest.mark.parametrize("marker", ["q_conv1d", "b_proj"])
def test_linear_attention_with_names_of_attention_is_listed(marker, write_model):
    paths = four("self_attn.") | GATED_MLP
    tensors = stored("model.layers", 0, paths | {f"self_attn.{marker}": "attn_q"}) | stored("model.layers", 1, paths)
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert [matrix.layer for matrix in checkpoint.matrices("attn_q")] == [1]
    assert [matrix.layer for matrix in checkpoint.matrices("mlp_up")] == [0, 1]
    assert set(reasons(checkpoint).values()) == {"part of linear attention"}


def test_time_mix_of_rwkv_is_no_attention(write_model):
    paths = {f"attention.{x}": "attn_q" for x in ("key", "value", "receptance", "output")}
    tensors = stored("rwkv.blocks", 0, paths | {"feed_forward.key": "mlp_up", "feed_forward.value": "mlp_down"})
    checkpoint = open_checkpoint(write_model(tensors))
    check_accounts(checkpoint)
    assert {matrix.name for matrix in checkpoint.matrices()} == {"mlp_up", "mlp_down"}
