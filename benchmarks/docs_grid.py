"""Speed of the DOCS grid: this engine, the textbook implementation and a plain bfloat16 product, in one run.

The three take turns, so that a busy machine slows all of them, and the ratios are of the medians over the turns.
The textbook's time is that of some ordered pairs, times all of them: each pair costs the same.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable

import psutil
import torch
from in_memory import Matrix
from scipy.stats import gumbel_r

from docs_sim.engine.device import product_dtype
from docs_sim.engine.grid import DocsGrid, docs_grid

CPU = torch.device("cpu")
_TEXTBOOK_PAIRS = 2


def textbook(x: torch.Tensor, y: torch.Tensor) -> float:
    """DOCS as the paper writes it, in float32: each direction normalises, multiplies and reduces by itself."""

    def location_of_matches(a: torch.Tensor, b: torch.Tensor) -> float:
        cosines = (a / a.norm(dim=0)).T @ (b / b.norm(dim=0))
        return float(gumbel_r.fit(cosines.abs().max(dim=1).values.numpy())[0])

    x, y = x.float(), y.float()
    return (location_of_matches(x, y) + location_of_matches(y, x)) / 2


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and the peak of resident memory above the start, in MB, sampled every 5 ms."""
    process, done, peak = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    try:
        work()
        seconds = time.perf_counter() - started
    finally:
        done.set()
        watcher.join()
    return seconds, max(0, peak[0] - before) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--m", type=int, default=8192)
    parser.add_argument("--count", type=int, default=6, help="matrices")
    parser.add_argument("--turns", type=int, default=4)
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(arguments.m, arguments.n, generator=generator) for _ in range(arguments.count)]
    rounded = [weight.bfloat16() for weight in weights]
    in_float32 = [Matrix(f"float32 {number}", weight) for number, weight in enumerate(weights)]
    in_bfloat16 = [Matrix(f"bfloat16 {number}", weight) for number, weight in enumerate(rounded)]
    pairs = arguments.count * (arguments.count - 1) // 2
    grids: list[DocsGrid] = []

    def plain_products() -> None:
        for i in range(arguments.count):
            for j in range(i):
                torch.mm(rounded[i], rounded[j].T)

    def textbook_pairs() -> None:
        for j in range(1, 1 + _TEXTBOOK_PAIRS):
            textbook(rounded[0].T, rounded[j].T)

    contestants: dict[str, Callable[[], object]] = {
        "engine, bfloat16 storage": lambda: grids.append(docs_grid(in_bfloat16, devices=[CPU])),
        "engine, float32 storage": lambda: docs_grid(in_float32, devices=[CPU]),
        "plain bfloat16 product": plain_products,
        "textbook, float32": textbook_pairs,
    }
    product_dtype(CPU)  # the probe is paid once a process
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for turn in range(arguments.turns):
        for name, work in contestants.items():
            print(f"turn {turn + 1} of {arguments.turns}: {name}", file=sys.stderr, flush=True)
            seconds, memory = measured(work)
            scale = arguments.count**2 / _TEXTBOOK_PAIRS if name.startswith("textbook") else 1
            results[name].append((seconds * scale, memory))

    print(f"{arguments.count} matrices of ({arguments.n}, {arguments.m}), {torch.get_num_threads()} threads, ", end="")
    print(f"{torch.backends.cpu.get_cpu_capability()}, engine multiplies in {grids[0].product}")
    medians = {name: statistics.median(seconds for seconds, _ in turns) for name, turns in results.items()}
    for name, turns in results.items():
        every = " ".join(f"{seconds:.2f}" for seconds, _ in turns)
        rate = pairs * 2 * arguments.n * arguments.m**2 / medians[name] / 1e9
        memory = max(memory for _, memory in turns)
        print(f"{name:26}{medians[name]:8.2f} s (turns: {every}), {rate:6.0f} GFLOP/s of use, {memory:5.0f} MB more")
    plain, book = medians["plain bfloat16 product"], medians["textbook, float32"]
    for name in ("engine, bfloat16 storage", "engine, float32 storage"):
        print(f"{name}: {plain / medians[name]:.2f} of the plain product's rate, {book / medians[name]:.1f} x textbook")
    difference = abs(grids[0].values[0, 1] - textbook(rounded[0].T, rounded[1].T))
    print(f"engine against textbook: {difference:.1e} apart, {grids[0].exact_pairs} of {pairs} pairs in float32")


if __name__ == "__main__":
    main()
