"""Memory and time of a grid under a small budget: a synthetic checkpoint in shards, through the command line's road.

Each grid runs in a process of its own; its anonymous memory (what the page cache cannot take back) is sampled and
compared with that of an idle interpreter that has imported torch. Linux only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHARDS = 4

_RUN = """
import json, re, sys, threading, time
import torch

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024

peak, done = anonymous(), threading.Event()
result = {"idle": peak}
if len(sys.argv) > 1:
    def watch():
        global peak
        while not done.wait(0.005):
            peak = max(peak, anonymous())
    threading.Thread(target=watch, daemon=True).start()
    from docs_sim.analyses.heatmap import heatmap
    budget = None if sys.argv[2] == "none" else int(sys.argv[2]) * 2**20
    started = time.perf_counter()
    found = heatmap(sys.argv[1], "mlp_up", device="cpu", memory_budget=budget)
    result = {"seconds": time.perf_counter() - started, "peak": peak, "loads": found.grid.loads,
              "product": found.grid.product, "exact_pairs": found.grid.exact_pairs, "values": found.values.tolist()}
    done.set()
print(json.dumps(result))
"""


def write_checkpoint(directory: Path, layers: int, n: int, m: int) -> None:
    """A llama-like checkpoint of random ``mlp_up`` matrices in bfloat16, in shards with an index."""
    weight_map: dict[str, str] = {}
    generator = torch.Generator().manual_seed(0)
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(shard, layers, SHARDS)]
        save_file({name: torch.randn(m, n, generator=generator).bfloat16() for name in names}, directory / file)
        weight_map |= dict.fromkeys(names, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def run(*arguments: str) -> dict[str, Any]:
    """One process; what it printed."""
    command = [sys.executable, "-c", _RUN, *arguments]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(finished.stdout))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--m", type=int, default=5632)
    parser.add_argument("--budget", type=int, default=256, help="MiB")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(Path(directory), arguments.layers, arguments.n, arguments.m)
        idle = run()["idle"]
        free, tight = run(directory, "none"), run(directory, str(arguments.budget))
    print(
        f"{arguments.layers} layers of ({arguments.n}, {arguments.m}) bfloat16 in {SHARDS} shards, idle {idle:.0f} MiB"
    )
    for name, grid in (("half of free memory", free), (f"{arguments.budget} MiB", tight)):
        over = grid["peak"] - idle
        print(
            f"budget {name:20} {grid['seconds']:7.1f} s, {over:6.0f} MiB of anonymous memory over idle, "
            f"{grid['loads']} matrices read, {grid['exact_pairs']} pairs in float32 after {grid['product']}"
        )
    same = "the same numbers" if free["values"] == tight["values"] else "DIFFERENT NUMBERS"
    print(f"{same}; time {tight['seconds'] / free['seconds']:.2f} of that without the budget")


if __name__ == "__main__":
    main()
