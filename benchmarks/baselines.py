"""Speed of the classical indices over all pairs: this engine, pair by pair, and a published package, in one run.

What is compared takes turns, so that a busy machine slows all of it, and the ratios are of the medians over the turns.
The time of pair by pair is that of some pairs, times all of them: each pair costs the same. Every value
is checked against the engine's.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from in_memory import Matrix
from torch import Tensor
from torch.linalg import matrix_norm as norm

from docs_sim.engine.factored import factored_grid
from docs_sim.engine.parts import prepared_parts

CPU = torch.device("cpu")
PACKAGES = Path("baseline-packages")  # where ``make`` puts what this package is compared with
_TOLERANCE = 1e-3  # float32 sums of 16 million squares lose that much


@dataclass(frozen=True)
class Contender:
    """Another way to one index.

    Attributes:
        name: in words.
        index: which one.
        compute: of two float32 matrices (n, m), columns not centred.
        wanted: how many times slower than the engine it has to be; None where that is only measured.
    """

    name: str
    index: str
    compute: Callable[[Tensor, Tensor], float]
    wanted: float | None = None


def centred(x: Tensor) -> Tensor:
    """Columns with mean 0."""
    return x - x.mean(0)


def cka_of_columns(x: Tensor, y: Tensor) -> float:
    """Linear CKA as Kornblith et al. write it in their Table 1: products of columns."""
    x, y = centred(x), centred(y)
    return float(norm(y.T @ x).square() / (norm(x.T @ x) * norm(y.T @ y)))


def cka_of_rows(x: Tensor, y: Tensor) -> float:
    """Linear CKA through the (n, n) products of each side."""
    x, y = centred(x), centred(y)
    gram_x, gram_y = x @ x.T, y @ y.T
    return float((gram_x * gram_y).sum() / (norm(gram_x) * norm(gram_y)))


def basis(x: Tensor, share: float = 1.0) -> Tensor:
    """Left singular vectors of the leading directions with this share of the variance, rounding cut."""
    u, values, _ = torch.linalg.svd(centred(x), full_matrices=False)
    rank = int((values > values[0] * max(x.shape) * torch.finfo(x.dtype).eps).sum())
    variance = values[:rank].square().cumsum(0)
    leading: Tensor = u[:, : min(rank, int((variance < share * variance[-1]).sum()) + 1)]
    return leading


def cca_r2(x: Tensor, y: Tensor) -> float:
    """Mean squared canonical correlation."""
    left, right = basis(x), basis(y)
    return float(norm(left.T @ right).square() / min(left.shape[1], right.shape[1]))


def svcca_r2(x: Tensor, y: Tensor) -> float:
    """The same of the leading directions."""
    left, right = basis(x, 0.99), basis(y, 0.99)
    return float(norm(left.T @ right).square() / min(left.shape[1], right.shape[1]))


def linear_regression(x: Tensor, y: Tensor) -> float:
    """R^2, the mean of both directions."""
    left, right = basis(x), basis(y)
    x, y = centred(x), centred(y)
    explained = norm(right.T @ x).square() / norm(x).square()
    return float(explained + norm(left.T @ y).square() / norm(y).square()) / 2


def in_float64(compute: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
    """The same in the precision of the engine's factorizations."""
    return lambda x, y: compute(x.double(), y.double())


def contenders() -> list[Contender]:
    """All of them; the published package where it is installed."""
    found = [
        Contender("pair by pair, X'X, Y'Y and Y'X", "linear_cka", cka_of_columns, wanted=100),
        Contender("pair by pair, (n, n) products", "linear_cka", cka_of_rows, wanted=10),
    ]
    for compute in (cca_r2, svcca_r2, linear_regression):
        found += [
            Contender("pair by pair, SVDs in float64", compute.__name__, in_float64(compute), wanted=15),
            Contender("pair by pair, SVDs in float32", compute.__name__, compute),
        ]
    sys.path.append(str(PACKAGES.resolve()))
    try:
        from ckatorch.core import cka_base
    except ImportError:
        print(f"ckatorch is not in {PACKAGES}: run this with `make bench`", file=sys.stderr)
    else:
        found += [
            Contender("ckatorch 1.0.3", "linear_cka", lambda x, y: float(cka_base(x, y))),
            Contender(
                "ckatorch 1.0.3, unbiased", "linear_cka_debiased", lambda x, y: float(cka_base(x, y, unbiased=True))
            ),
        ]
    return found


def engine_grid(matrices: list[Matrix], index: str) -> np.ndarray:
    """All pairs by the engine."""
    with prepared_parts(matrices, [index], devices=[CPU]) as parts:
        return factored_grid(parts, index, devices=[CPU]).values


def check(contender: Contender, value: float, expected: float) -> None:
    """End with an error where a contender computes something else."""
    if not abs(value - expected) <= _TOLERANCE * max(abs(expected), 0.1):
        raise SystemExit(f"{contender.name}, {contender.index}: {value} where the engine has {expected}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--m", type=int, default=4096)
    parser.add_argument("--count", type=int, default=24, help="matrices")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=2, help="of pair by pair in each turn")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    matrices = [
        Matrix(f"matrix {number}", torch.randn(arguments.m, arguments.n, generator=generator))
        for number in range(arguments.count)
    ]
    pairs = list(combinations(range(arguments.count), 2))
    others = contenders()
    engine: dict[str, list[float]] = {contender.index: [] for contender in others}
    slower: dict[str, list[float]] = {f"{contender.index}: {contender.name}": [] for contender in others}
    for turn in range(arguments.turns):
        print(f"turn {turn + 1} of {arguments.turns}", file=sys.stderr, flush=True)
        grids = {}
        for index, turns in engine.items():
            started = time.perf_counter()
            grids[index] = engine_grid(matrices, index)
            turns.append(time.perf_counter() - started)
        for contender in others:
            some = [pairs[(turn * arguments.pairs + number) % len(pairs)] for number in range(arguments.pairs)]
            started = time.perf_counter()
            values = [contender.compute(matrices[i].load(), matrices[j].load()) for i, j in some]
            seconds = (time.perf_counter() - started) / len(some) * len(pairs)
            slower[f"{contender.index}: {contender.name}"].append(seconds)
            for pair, value in zip(some, values, strict=True):
                check(contender, value, grids[contender.index][pair])

    print(f"{arguments.count} matrices of ({arguments.n}, {arguments.m}) in float32, {len(pairs)} pairs, ", end="")
    print(f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    for index, turns in engine.items():
        median = statistics.median(turns)
        print(f"{index:20} engine {median:27.2f} s (turns: {' '.join(f'{seconds:.2f}' for seconds in turns)})")
        for contender in others:
            if contender.index == index:
                other = statistics.median(slower[f"{index}: {contender.name}"])
                wanted = "" if contender.wanted is None else f" (wanted: {contender.wanted:.0f})"
                print(f"{'':20} {contender.name:32} {other:8.1f} s: {other / median:6.1f} x the engine{wanted}")


if __name__ == "__main__":
    main()
