"""The grid against float64, over shapes, storage types and similarities; its budget, devices and bookkeeping."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_memory import InMemory
from scipy.linalg import hadamard

from docs_sim.engine import grid as grid_module
from docs_sim.engine import screening
from docs_sim.engine.grid import docs_grid
from docs_sim.errors import InputError
from docs_sim.indices.docs import QUANTILES, Tile, best_matches, chance_level, docs, docs_mean, unit_neurons
from docs_sim.indices.gumbel import fit_gumbel

STORAGE = [torch.float32, torch.float16, torch.bfloat16]
KINDS = [
    "independent", "0.3", "0.8", "0.99", "0.9999", "permuted", "identical", "unmatched", "shared direction", "low rank",
    "shared coordinates", "hub",
]  # fmt: skip
# (n, m): m below, at and above n.
SHAPES = [(2, 1), (2, 2), (2, 50), (64, 16), (64, 64), (64, 300), (512, 1200), (4096, 200), (1024, 2500), (2048, 2000)]


@pytest.fixture
def int8_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Int8 products are tried on every machine, fast or not, and for every shape: the engine must know their limits."""
    monkeypatch.setattr(grid_module, "product_dtype", lambda device: torch.int8)
    monkeypatch.setattr(grid_module, "worth_screening", lambda shapes: True)
    monkeypatch.setattr(screening, "_MOST_CANDIDATES", 1)


def related(n: int, m: int, kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two neuron matrices (n, m) of a known relation, float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def one_direction(matrix: torch.Tensor) -> torch.Tensor:
        shared = torch.full((1, m), 0.7)
        return torch.cat([shared, (matrix / torch.linalg.vector_norm(matrix, dim=0))[1:]])

    def shared_coordinates(matrix: torch.Tensor) -> torch.Tensor:
        rest = matrix[:-3] / torch.linalg.vector_norm(matrix[:-3], dim=0) * (1 - 3 * 0.0627**2) ** 0.5
        return torch.cat([torch.full((3, m), 0.0627), rest]) if n > 300 else matrix

    def hub(matrix: torch.Tensor) -> torch.Tensor:
        """Neurons that lean to one direction, and one that points there: the best match of most."""
        leaning = matrix / torch.linalg.vector_norm(matrix, dim=0) + 0.2 * direction
        leaning[:, :1] = direction
        return leaning

    def lattice(share: float, place: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Best products of which a share lies at one place between two bfloat16 numbers, each made of many terms."""
        blocks = torch.block_diag(*[torch.from_numpy(hadamard(64)).float() / 8] * (n // 64))
        step = 2.0**-10
        places = torch.rand(len(blocks), generator=generator)
        places[torch.rand(len(blocks), generator=generator) < share] = place
        matched = step * (torch.randint(150, 250, (len(blocks),), generator=generator) + places)
        others = normal(*blocks.shape).fill_diagonal_(0)
        others *= (1 - matched**2).sqrt() / torch.linalg.vector_norm(others, dim=0)
        return blocks, blocks @ (others + torch.diag(matched))

    def low_rank() -> torch.Tensor:
        return basis @ normal(16, m) + 0.1 * normal(n, m)

    x, y, basis, order = normal(n, m), normal(n, m), normal(n, 16), torch.randperm(m, generator=generator)
    few, direction = max(1, m // 50), torch.nn.functional.normalize(normal(n, 1), dim=0)
    pairs = {
        "independent": lambda: (x, y),
        "permuted": lambda: (x, (x * (torch.randint(0, 2, (m,), generator=generator) * 2 - 1))[:, order]),
        "identical": lambda: (x, x.clone()),
        "unmatched": lambda: (x, torch.cat([normal(n, few), (x + 0.01 * y)[:, few:]], dim=1)),
        "shared coordinates": lambda: (shared_coordinates(x), shared_coordinates(y)),
        "hub": lambda: (hub(x), hub(y)),
        "copies": lambda: (x[:, : m // 4].repeat(1, 4), y[:, : m // 4].repeat(1, 4)),
        "near copies": lambda: tuple(side[:, : m // 4].repeat(1, 4) + 0.001 * normal(n, m // 4 * 4) for side in (x, y)),
        "plus or minus one": lambda: (normal(n, m).sign(), normal(n, m).sign()),
        "shared direction": lambda: (one_direction(x), one_direction(y)),
        "low rank": lambda: (low_rank(), low_rank()),
    }
    if kind in pairs:
        return pairs[kind]()
    if kind.startswith("lattice"):
        return lattice(*map(float, kind.split()[1:]))
    share = float(kind)
    return x, (share * x + (1 - share**2) ** 0.5 * y)[:, order]


def off_by(x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest error of any number that the grid has of a pair, but for the scale."""
    grid = docs_grid([InMemory(x), InMemory(y)])
    exact = [unit_neurons(side.double(), torch.float64) for side in (x, y)]
    rows = max(len(side) for side in exact)
    matches = best_matches(*exact, Tile(torch.empty(rows**2, dtype=torch.float64), rows))
    errors = [abs(grid.values[0, 1] - docs(x.double(), y.double()))]
    for place, sample in zip(((0, 1), (1, 0)), matches, strict=True):
        errors.append(abs(grid.location[place] - float(fit_gumbel(sample).location)))
        errors.append(abs(grid.scale[place] - float(fit_gumbel(sample).scale)))
        errors.append(abs(grid.mean[place] - float(sample.mean())))
        levels = torch.tensor(QUANTILES, dtype=torch.float64)
        errors.append(float(np.abs(grid.quantiles[place] - torch.quantile(sample, levels).numpy()).max()))
    return max(errors)


@pytest.mark.usefixtures("int8_products")
@pytest.mark.parametrize("storage", STORAGE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_within_2e_5_of_float64(n: int, m: int, kind: str, storage: torch.dtype) -> None:
    x, y = related(n, m, kind, seed=n + m)
    assert off_by(x.to(storage), y.to(storage)) < 2e-5


@pytest.mark.usefixtures("int8_products")
@pytest.mark.parametrize("kind", ["independent", "0.3", "shared coordinates", "hub", "copies", "near copies"])
def test_structured_neurons(kind: str) -> None:
    """Many neurons make each rounding error small on average, unless they share it; copies have many rivals."""
    x, y = related(1024, 5000, kind, seed=5)
    assert off_by(x, y) < 2e-5


@pytest.mark.usefixtures("int8_products")
@pytest.mark.parametrize("seed", [1, 8])
def test_a_single_neuron_without_its_like_counts(seed: int) -> None:
    """All others match nearly exactly, so the fit hangs on that one, which many neurons match almost equally."""
    generator = torch.Generator().manual_seed(seed)
    lean = 0.1 + 0.01 * torch.randn(1, 4000, generator=generator)
    rest = torch.nn.functional.normalize(torch.randn(255, 4000, generator=generator), dim=0)
    y = torch.cat([lean, rest * (1 - lean**2).sqrt()])
    x = y + 0.002 * torch.randn(256, 4000, generator=generator) / 16
    x[:, 1] = 0
    x[0, 1] = 1
    assert off_by(x, y) < 2e-5


@pytest.mark.usefixtures("int8_products")
@pytest.mark.parametrize("kind", ["lattice 1 0.625", "lattice 0.3 0.52", "lattice 0.1 0.9", "plus or minus one"])
@pytest.mark.parametrize("seed", [5, 6])
def test_products_that_round_the_same_way_are_noticed(kind: str, seed: int) -> None:
    assert off_by(*related(2048, 2048, kind, seed)) < 2e-5


@pytest.mark.usefixtures("int8_products")
@given(
    n=st.integers(2, 700),
    m=st.integers(1, 900),
    kind=st.sampled_from(KINDS),
    storage=st.sampled_from(STORAGE),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_within_2e_5_of_float64_everywhere(n: int, m: int, kind: str, storage: torch.dtype, seed: int) -> None:
    x, y = related(n, m, kind, seed)
    assert off_by(x.to(storage), y.to(storage)) < 2e-5


@pytest.mark.usefixtures("int8_products")
def test_int8_products_are_used_where_they_are_exact_enough() -> None:
    apart, alike = related(2048, 4096, "independent", 1), related(2048, 4096, "0.9999", 1)
    grid = docs_grid([InMemory(matrix.bfloat16()) for matrix in (*apart, alike[1])])
    assert grid.product == "int8"
    assert grid.exact_pairs == 0
    assert docs_grid([InMemory(matrix) for matrix in alike], precision="highest").product == "float32"


@pytest.mark.usefixtures("int8_products")
def test_rivals_without_number_are_left_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every neuron nearly parallel to all others: coarse products cannot tell which is the best."""
    monkeypatch.setattr(screening, "_MOST_CANDIDATES", 1 / 8)
    grid = docs_grid([InMemory(side) for side in related(512, 1200, "shared direction", 1)])
    assert grid.exact_pairs == 1


@pytest.mark.parametrize("index", ["docs", "docs_mean"])
def test_a_grid_is_its_pairs(index: str) -> None:
    function = {"docs": docs, "docs_mean": docs_mean}[index]
    matrices = [related(48, m, "independent", m)[0] for m in (30, 64, 64, 100)]
    grid = docs_grid([InMemory(matrix) for matrix in matrices], index=index)
    for i in range(4):
        for j in range(4):
            if i != j:
                expected = function(matrices[i].double(), matrices[j].double())
                assert grid.values[i, j] == pytest.approx(expected, abs=2e-6)
    # A matrix and itself: 1 by definition for DOCS, not computed for the mean variant.
    assert np.array_equal(np.diag(grid.values), [1.0 if index == "docs" else np.nan] * 4, equal_nan=True)
    assert np.array_equal(grid.values, grid.values.T, equal_nan=True)
    assert np.allclose((grid.location + grid.location.T) / 2, grid.values, equal_nan=True)
    assert not (np.diff(grid.quantiles, axis=2) < 0).any()


def test_scale_mean_and_quantiles_describe_the_matches() -> None:
    x, y = related(32, 40, "independent", 3)
    unit_x, unit_y = (side / torch.linalg.vector_norm(side, dim=0) for side in (x.double(), y.double()))
    cosines = (unit_x.T @ unit_y).abs()
    grid = docs_grid([InMemory(x), InMemory(y)])
    for (row, column), sample in {(0, 1): cosines.amax(1), (1, 0): cosines.amax(0)}.items():
        assert grid.mean[row, column] == pytest.approx(float(sample.mean()), abs=2e-5)
        expected = np.quantile(sample.numpy(), [0.05, 0.25, 0.5, 0.75, 0.95])
        assert grid.quantiles[row, column] == pytest.approx(expected, abs=2e-5)
        assert grid.scale[row, column] > 0


def test_a_small_budget_gives_the_same_numbers_for_more_reading() -> None:
    matrices = [InMemory(related(64, 96, "independent", seed)[0]) for seed in range(9)]
    free, tight = docs_grid(matrices), docs_grid(matrices, memory_budget=3 * 64 * 96 * 4)
    assert np.array_equal(free.values, tight.values)
    assert free.loads == 9
    assert 9 < tight.loads <= 9 + 7 + 5 + 3 + 1


@pytest.mark.parametrize("count", [2, 3, 5])
def test_devices_share_the_pairs(count: int) -> None:
    matrices = [InMemory(related(32, 48, "independent", seed)[0]) for seed in range(7)]
    finished = []
    shared = docs_grid(matrices, devices=[torch.device("cpu")] * count, progress=finished.append)
    assert np.array_equal(shared.values, docs_grid(matrices).values)
    assert sum(finished) == 21


def test_an_error_on_one_device_ends_all() -> None:
    """The first device meets the broken matrix at once; the other has 300 pairs to go."""
    broken = InMemory(torch.full((400, 400), float("nan")), key="layers.0.mlp_up")
    matrices = [broken] + [InMemory(torch.randn(400, 400)) for _ in range(39)]
    finished: list[int] = []
    with pytest.raises(InputError, match=r"layers\.0\.mlp_up"):
        docs_grid(matrices, devices=[torch.device("cpu")] * 2, progress=finished.append)
    assert sum(finished) < 200


def test_chance_knows_of_zero_columns() -> None:
    x, y = related(16, 40, "independent", 0)
    x[:, :30] = 0
    grid = docs_grid([InMemory(x), InMemory(y)])
    assert grid.chance[0, 1] == chance_level(16, 10, 40)


def test_zero_columns_are_counted() -> None:
    x, y = related(16, 20, "independent", 0)
    y[:, [3, 7]] = 0
    grid = docs_grid([InMemory(x), InMemory(y)])
    assert grid.zero_columns.tolist() == [0, 2]
    assert grid.values[0, 1] == pytest.approx(docs(x.double(), y.double()), abs=1e-6)


def test_different_spaces_cannot_be_compared() -> None:
    with pytest.raises(InputError, match=r"layers\.1\.mlp_up has n = 9"):
        docs_grid([InMemory(torch.randn(8, 8)), InMemory(torch.randn(9, 8), key="layers.1.mlp_up")])


def test_float32_products_are_full_products_whatever_the_program_allows() -> None:
    x, y = related(256, 300, "0.99", 0)
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        assert off_by(x, y) < 2e-6
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def test_an_identical_pair_among_others() -> None:
    x, y = related(64, 80, "independent", 0)
    values = docs_grid([InMemory(x), InMemory(x.clone()), InMemory(y), InMemory(x)]).values
    assert values[0, 1] == values[0, 3] == values[1, 3] == 1.0
    assert values[0, 2] < 0.9


def test_empty_matrices_are_refused() -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        docs_grid([InMemory(torch.randn(8, 0)), InMemory(torch.randn(8, 4))])


def accelerators() -> list[str]:
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return cuda + (["mps"] if torch.backends.mps.is_available() else [])


@pytest.mark.skipif(not accelerators(), reason="no CUDA or MPS device on this machine")
@pytest.mark.parametrize("device", accelerators())
@pytest.mark.parametrize("kind", [*KINDS, "copies", "near copies", "lattice 0.3 0.52"])
def test_within_2e_5_of_float64_on_an_accelerator(kind: str, device: str) -> None:
    x, y = related(2048, 2500, kind, seed=1)
    grid = docs_grid([InMemory(x.bfloat16()), InMemory(y.bfloat16())], devices=[torch.device(device)])
    assert abs(grid.values[0, 1] - docs(x.bfloat16().double(), y.bfloat16().double())) < 2e-5
