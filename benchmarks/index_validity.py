"""Do the indices tell related matrices from unrelated ones? Planted relations, and trained models.

Planted: pairs of matrices with a known relation, against independent pairs of the same make. Trained: the built-in
model against its fine-tune, against a model of the same size, data and schedule from another seed
(``demo-independent``: ``python -m docs_sim.demo.train --base-only --seed 1``), and against itself, layer by layer.

Areas are those under the curve of true against false positives: 1 where every related pair has a higher value than
every unrelated one, 0.5 where the index cannot tell, 0 where it is wrong every time. Prints tables in Markdown.
"""

import argparse
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import mannwhitneyu, spearmanr
from torch import Tensor

import docs_sim
from docs_sim.engine.nulls import random_rotation
from docs_sim.indices.table import INDICES

INDEPENDENT = Path(__file__).parent / "demo-independent"
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_o", "mlp_gate", "mlp_up", "mlp_down")
NEURONS = (32, 64, 256)  # below, equal to and above n
N = 64
NOISE = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the size of the weights
SHARED = (0.75, 0.5, 0.25, 0.125, 0.0625)  # of the columns
BLEND = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of an independent training
_DECIMALS = 9  # what differs beyond is rounding, and no index

Make = Callable[[int], Tensor]  # number of columns -> a fresh matrix
Pairs = Iterable[tuple[Tensor, Tensor]]


def isotropic(random: torch.Generator) -> Make:
    """All directions alike, all columns of about one length."""
    return lambda m: torch.randn((N, m), generator=random, dtype=torch.float64)


def anisotropic(random: torch.Generator) -> Make:
    """As in trained models: few directions hold most of every matrix, the same ones in all, and lengths differ."""
    basis = rotation(N, random)
    spectrum = torch.arange(1, N + 1, dtype=torch.float64).pow(-0.5)

    def make(m: int) -> Tensor:
        lengths = torch.randn(m, generator=random, dtype=torch.float64).mul(0.5).exp()
        return basis @ (spectrum[:, None] * torch.randn((N, m), generator=random, dtype=torch.float64)) * lengths

    return make


def rotation(n: int, random: torch.Generator) -> Tensor:
    """An orthogonal matrix (n, n)."""
    return random_rotation(n, int(torch.randint(2**31, (1,), generator=random))).double()


def noised(x: Tensor, make: Make, noise: float) -> Tensor:
    """X + noise Z with a fresh Z of the same make."""
    return x + noise * make(x.shape[1])


def partly_shared(x: Tensor, make: Make, share: float) -> Tensor:
    """That share of the columns of X, the others fresh."""
    kept = max(1, round(share * x.shape[1]))
    return torch.cat([x[:, :kept], make(x.shape[1] - kept)], dim=1)


def relations(random: torch.Generator, make: Make) -> dict[str, Callable[[Tensor], Tensor]]:
    """What is done to one matrix to get the other. The last one keeps its shape and no relation."""

    def of(m: int) -> Tensor:
        return torch.randn(m, generator=random, dtype=torch.float64)

    return {
        "permuted": lambda x: x[:, torch.randperm(x.shape[1], generator=random)],
        "rescaled": lambda x: x * of(x.shape[1]).exp(),
        "sign-flipped": lambda x: x * of(x.shape[1]).sign(),
        "noised (1 : 1)": lambda x: noised(x, make, 1.0),
        "1/8 of columns shared": lambda x: partly_shared(x, make, 0.125),
        "columns rotated (X Q)": lambda x: x @ rotation(x.shape[1], random),
        "space rotated (O X)": lambda x: rotation(N, random) @ x,
    }


def value(index: str, x: Tensor, y: Tensor) -> float:
    """Of one pair; NaN where the index has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return round(docs_sim.similarity(x, y, index=index), _DECIMALS)


def values(pairs: Pairs) -> pd.DataFrame:
    """One row for each pair, one column for each index."""
    return pd.DataFrame([{index: value(index, x, y) for index in INDICES} for x, y in pairs])


def areas(related: pd.DataFrame, unrelated: pd.DataFrame) -> pd.Series:
    """Of each index: how often a related pair has the higher value, ties counting half; NaN without values."""

    def area(index: str) -> float:
        sides = related[index].dropna(), unrelated[index].dropna()
        if not all(map(len, sides)):
            return float("nan")
        return float(mannwhitneyu(*sides).statistic) / (len(sides[0]) * len(sides[1]))

    return pd.Series({index: area(index) for index in INDICES})


def order(found: pd.DataFrame, degrees: Sequence[float]) -> pd.Series:
    """Rank correlation of each index with the degree of relation of each pair; NaN where the index is constant."""
    return pd.Series(
        {
            index: float("nan") if found[index].nunique() < 2 else float(spearmanr(found[index], degrees).statistic)
            for index in INDICES
        }
    )


def graded(relate: Callable[[int, float], Tensor], firsts: Sequence[Tensor], degrees: Sequence[float]) -> pd.Series:
    """``order`` of all matrices and what ``relate`` makes of each (by its number) at each degree."""
    numbers = range(len(firsts))
    found = [values((firsts[i], relate(i, degree)) for i in numbers) for degree in degrees]
    return order(pd.concat(found), np.repeat(degrees, len(firsts)).tolist())


def planted(make: Make, random: torch.Generator, m: int, pairs: int) -> pd.DataFrame:
    """Areas of every relation, rank correlations with noise and with the shared part, and the value at chance."""
    firsts = [make(m) for _ in range(pairs)]
    unrelated = values((x, make(m)) for x in firsts)
    table = pd.DataFrame(index=pd.Index(INDICES, name="index"))
    table["chance: mean"], table["chance: deviation"] = unrelated.mean(), unrelated.std()
    for name, relate in relations(random, make).items():
        table[name] = areas(values((x, relate(x)) for x in firsts), unrelated)
    few = firsts[: max(2, pairs // 4)]
    table["order by noise"] = -graded(lambda i, noise: noised(few[i], make, noise), few, NOISE)
    table["order by shared part"] = graded(lambda i, share: partly_shared(few[i], make, share), few, SHARED)
    return table


def layers(model: str | Path, matrix: str) -> list[Tensor]:
    """The matrices of all layers."""
    return [one.load().double() for one in docs_sim.open_checkpoint(model).matrices(matrix)]


def trained(matrix: str) -> pd.DataFrame:
    """One matrix of the built-in models: areas, rank correlations, and the value for an independent training."""
    base, tuned, other = layers("demo", matrix), layers("demo-tuned", matrix), layers(INDEPENDENT, matrix)
    numbers = range(len(base))
    fine_tune = values((base[i], tuned[i]) for i in numbers)
    other_layers = values((base[i], tuned[j]) for i in numbers for j in numbers if i != j)
    same_layer_of_other = values((base[i], other[i]) for i in numbers)
    pairs = list(combinations(numbers, 2))
    within = values((base[i], base[j]) for i, j in pairs)
    across = values((base[i], other[j]) for i, j in pairs)
    return pd.DataFrame(
        {
            "independent training: mean": same_layer_of_other.mean(),
            "fine-tune: mean": fine_tune.mean(),
            "same layer of the fine-tune, from other layers": areas(fine_tune, other_layers),
            "same layer of the fine-tune, from the independent model": areas(fine_tune, same_layer_of_other),
            "two layers of one model, from the independent model": areas(within, across),
            "order by nearness of layers": order(within, [i - j for i, j in pairs]),
            "order by part of the independent model": -graded(
                lambda i, part: (1 - part) * base[i] + part * other[i], base, BLEND
            ),
        }
    )


def markdown(table: pd.DataFrame) -> str:
    """With two decimals, or as many digits as needed to show that something is there."""

    def text(number: float) -> str:
        return "" if np.isnan(number) else f"{number:.2f}" if abs(number) >= 0.1 or number == 0 else f"{number:.2g}"

    rows = [
        [f"`{index}`", *(text(number) for number in row)]
        for index, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    lines = [["", *table.columns], ["---"] * (1 + len(table.columns)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="planted pairs of each relation")
    arguments = parser.parse_args()
    for geometry in (isotropic, anisotropic):
        for m in NEURONS:
            random = torch.Generator().manual_seed(m)
            table = planted(geometry(random), random, m, arguments.pairs)
            print(
                f"\n### Planted, {geometry.__name__}, ({N}, {m}), {arguments.pairs} pairs of each\n\n{markdown(table)}"
            )
    tables = {matrix: trained(matrix) for matrix in MATRICES}
    print(f"\n### Trained, mean over {', '.join(MATRICES)}\n")
    print(markdown(pd.concat(tables).groupby(level=1, sort=False).mean()))
    for matrix in ("mlp_up", "attn_v"):
        print(f"\n### Trained, {matrix}\n\n{markdown(tables[matrix])}")


if __name__ == "__main__":
    main()
