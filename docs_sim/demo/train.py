"""Train the three built-in models, from a seed, in under an hour on two cores.

Run ``python -m docs_sim.demo.train --out DIR`` with the ``[activations]`` extra installed, on a Debian 12 system with
the packages ``python3.11-doc``, ``bible-kjv`` and ``bible-kjv-text``. README.md beside this file is the model card.
"""

import argparse
import csv
import math
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import torch
from matplotlib.figure import Figure
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

NAMES = ("demo", "demo-tuned", "demo-moe")
SEED = 2501
THREADS = 2  # part of the recipe: the order of floating-point sums depends on it
PYTHON_DOCUMENTATION = Path("/usr/share/doc/python3.11/html/_sources")
END_OF_TEXT = "<|endoftext|>"
CONTEXT, BATCH = 256, 16
HELD_OUT = 0.03
EXPERTS = 4
SHAPE: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def python_documentation() -> list[str]:
    """The reStructuredText sources of the Python 3.11 documentation, one string a page."""
    return [page.read_text() for page in sorted(PYTHON_DOCUMENTATION.rglob("*.rst.txt"))]


def king_james_bible() -> list[str]:
    """The King James Bible, one string for every hundred verses."""
    command = ["bible", "-f", "gen1:1-rev22:21"]
    verses = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines(keepends=True)
    return ["".join(verses[start : start + 100]) for start in range(0, len(verses), 100)]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of ``SHAPE["vocab_size"]`` entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"],
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Shuffled documents joined by the end-of-text token: (training tokens, held-out tokens)."""
    shuffled = random.Random(SEED).sample(texts, len(texts))
    stream = torch.tensor([token for text in shuffled for token in [0, *tokenizer(text)["input_ids"]]])
    held_out = int(len(stream) * HELD_OUT)
    return stream[held_out:], stream[:held_out]


def windows(streams: list[torch.Tensor], generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Endless batches (BATCH, CONTEXT) of random windows, an equal share from each stream."""
    while True:
        rows = []
        for index in range(BATCH):
            stream = streams[index % len(streams)]
            start = int(torch.randint(len(stream) - CONTEXT, (1,), generator=generator))
            rows.append(stream[start : start + CONTEXT])
        yield torch.stack(rows)


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, stream: torch.Tensor) -> float:
    """Mean token cross-entropy, in nats, over at most 64 windows of the held-out stream."""
    model.eval()
    batches = stream[: len(stream) // CONTEXT * CONTEXT].view(-1, CONTEXT)[:64].split(BATCH)
    losses = [float(model(input_ids=batch, labels=batch, output_router_logits=False).loss) for batch in batches]
    model.train()
    return sum(losses) / len(losses)


def train(
    model: PreTrainedModel,
    streams: list[torch.Tensor],
    held_out: dict[str, torch.Tensor],
    *,
    steps: int,
    peak_rate: float,
    seed: int,
) -> list[dict[str, float]]:
    """AdamW with warm-up and cosine decay; returns the loss curve, a row for every hundred steps."""
    decay_to = 0.05
    warm_up = min(200, steps // 10)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak_rate, betas=(0.9, 0.95), fused=True)

    def rate(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        progress = (step - warm_up) / (steps - warm_up)
        return decay_to + (1 - decay_to) * (1 + math.cos(math.pi * progress)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    curve, started, recent = [], time.monotonic(), 0.0
    model.train()
    for step, batch in zip(range(1, steps + 1), windows(streams, torch.Generator().manual_seed(seed)), strict=False):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        recent += float(loss.detach())
        if step % 100 == 0:
            row = {"step": step, "train": recent / 100}
            row |= {name: held_out_loss(model, stream) for name, stream in held_out.items()}
            curve.append({key: round(value, 4) for key, value in row.items()})
            print(f"{time.monotonic() - started:6.0f} s", curve[-1], flush=True)
            recent = 0.0
    return curve


def upcycle(base: LlamaForCausalLM) -> MixtralForCausalLM:
    """A Mixtral whose experts all start as copies of the base's MLP, with a random router."""
    config = MixtralConfig(
        **SHAPE,
        head_dim=SHAPE["hidden_size"] // SHAPE["num_attention_heads"],
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        output_router_logits=True,
        router_aux_loss_coef=0.01,
        sliding_window=None,
        rms_norm_eps=base.config.rms_norm_eps,
        rope_parameters=base.config.rope_parameters,
    )
    mixture = MixtralForCausalLM(config)
    shared = {name: tensor for name, tensor in base.state_dict().items() if ".mlp." not in name}
    mixture.load_state_dict(shared, strict=False)
    with torch.no_grad():
        for dense, sparse in zip(base.model.layers, mixture.model.layers, strict=True):
            gate_up = torch.cat([dense.mlp.gate_proj.weight, dense.mlp.up_proj.weight])
            sparse.mlp.experts.gate_up_proj.copy_(gate_up.expand(EXPERTS, -1, -1))
            sparse.mlp.experts.down_proj.copy_(dense.mlp.down_proj.weight.expand(EXPERTS, -1, -1))
    return mixture


def save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, curve: list[dict[str, float]], directory: Path
) -> None:
    """Write config, tokenizer, bfloat16 weights and ``losses.csv`` in the ordinary Hugging Face form."""
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    with (directory / "losses.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=curve[0])
        writer.writeheader()
        writer.writerows(curve)


def draw_losses(directory: Path) -> None:
    """Draw the loss curves of the three models side by side into ``losses.png``."""
    figure = Figure(figsize=(9, 3), layout="constrained", dpi=100)
    for axes, name in zip(figure.subplots(1, 3, sharey=True), NAMES, strict=True):
        curve = pandas.read_csv(directory / name / "losses.csv", index_col="step")
        curve.plot(ax=axes, title=name, ylabel="nats a token", ylim=(2, 8), legend=name == NAMES[0])
    figure.savefig(directory / "losses.png", metadata={"Software": None})


def main() -> None:
    """Train the base, the fine-tune and the mixture into ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory that receives the three models")
    parser.add_argument("--seed", type=int, default=SEED, help="of the initial weights and the order of the batches")
    parser.add_argument("--base-only", action="store_true", help="end after the base")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of steps, to try it out")
    arguments = parser.parse_args()

    torch.set_num_threads(THREADS)
    torch.manual_seed(arguments.seed)
    documentation, bible = python_documentation(), king_james_bible()
    tokenizer = train_tokenizer(documentation + bible)
    python_train, python_held_out = token_stream(tokenizer, documentation)
    bible_train, bible_held_out = token_stream(tokenizer, bible)
    held_out = {"python_documentation": python_held_out, "king_james_bible": bible_held_out}
    print(f"tokens: {len(python_train):,} of Python documentation, {len(bible_train):,} of the Bible")

    def schedule(full: int, peak_rate: float) -> dict[str, Any]:
        return {"steps": max(100, int(full * arguments.scale)), "peak_rate": peak_rate, "seed": arguments.seed}

    base = LlamaForCausalLM(LlamaConfig(**SHAPE))
    curve = train(base, [python_train], held_out, **schedule(4000, 4e-3))
    weights = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    save(base, tokenizer, curve, arguments.out / NAMES[0])
    if arguments.base_only:
        return

    tuned = LlamaForCausalLM(LlamaConfig(**SHAPE))
    tuned.load_state_dict(weights)
    curve = train(tuned, [bible_train], held_out, **schedule(400, 4e-4))
    save(tuned, tokenizer, curve, arguments.out / NAMES[1])

    base.to(torch.float32).load_state_dict(weights)
    mixture = upcycle(base)
    curve = train(mixture, [python_train, bible_train], held_out, **schedule(1000, 1e-3))
    save(mixture, tokenizer, curve, arguments.out / NAMES[2])
    draw_losses(arguments.out)


if __name__ == "__main__":
    main()
