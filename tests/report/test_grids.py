"""Pictures of grids: ticks that can be read, colours that mean what the bar says, the same bytes each time."""

from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from docs_sim.errors import InputError
from docs_sim.report.grids import GridFigure, check_colour_range, draw_grid, figure_bytes


def grid(count: int = 8, **changes: object) -> GridFigure:
    random = np.random.default_rng(0).uniform(0.2, 0.6, (count, count))
    values = (random + random.T) / 2
    np.fill_diagonal(values, 1)
    labels = [str(layer) for layer in range(count)]
    return replace(GridFigure(values, labels, "tiny", "DOCS of mlp_up", "DOCS", "layer"), **changes)


def off_diagonal(values: np.ndarray) -> np.ndarray:
    return values[~np.eye(len(values), dtype=bool)]


def drawn(figure: Figure) -> Figure:
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize("count", [2, 8, 24, 25, 126, 400])
def test_tick_labels_never_overlap(count):
    axes = drawn(draw_grid(grid(count))).axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
        assert 2 <= len(boxes) <= 24
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("count", [2, 8, 126])
def test_everything_lies_inside_the_picture(count):
    figure = drawn(draw_grid(grid(count)))
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1


@pytest.mark.parametrize("count", [8, 126])
def test_tick_stands_at_its_cell(count):
    axes = draw_grid(grid(count)).axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        ticks = dict(zip(axis.get_ticklocs(), (label.get_text() for label in axis.get_ticklabels()), strict=True))
        assert ticks == {position: str(int(position - 0.5)) for position in ticks}
        assert 0.5 in ticks


def test_diagonal_has_no_colour_and_does_not_enter_the_scale():
    given = grid()
    mesh = draw_grid(given).axes[0].collections[0]
    shown = np.ma.asarray(mesh.get_array()).reshape(8, 8)
    assert np.array_equal(np.ma.getmaskarray(shown), np.eye(8, dtype=bool))
    assert mesh.get_clim() == (off_diagonal(given.values).min(), off_diagonal(given.values).max())


@pytest.mark.parametrize(
    ("vmin", "vmax"),
    [(0.0, 1.0), (0.3, 0.4), (None, 0.9), (0.1, None), (0.3, None), (None, 0.35), (2.0, None), (None, 0.0)],
)
def test_chosen_ends_of_the_scale_are_kept(vmin, vmax):
    low, high = draw_grid(grid(vmin=vmin, vmax=vmax)).axes[0].collections[0].get_clim()
    assert vmin is None or low == vmin
    assert vmax is None or high == vmax
    assert low < high


@pytest.mark.parametrize(
    ("vmin", "vmax", "extend"),
    [(None, None, "neither"), (0.0, 1.0, "neither"), (0.3, 1.0, "min"), (0.0, 0.4, "max"), (0.3, 0.4, "both")],
)
def test_values_beyond_the_scale_are_shown_by_arrows(vmin, vmax, extend):
    assert draw_grid(grid(vmin=vmin, vmax=vmax)).axes[0].collections[0].colorbar.extend == extend


@pytest.mark.parametrize(
    ("vmin", "vmax"), [(1, 0), (0.5, 0.5), (float("nan"), None), (None, float("inf")), (float("-inf"), 0)]
)
def test_scale_without_extent_is_refused(vmin, vmax):
    for refuse in (lambda: check_colour_range(vmin, vmax), lambda: draw_grid(grid(vmin=vmin, vmax=vmax))):
        with pytest.raises(InputError, match="vmin must be a number below vmax"):
            refuse()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, -1e-9, 1e6])
def test_constant_grid_is_drawn(value):
    figure = drawn(draw_grid(grid(values=np.full((8, 8), value))))
    low, high = figure.axes[0].collections[0].get_clim()
    assert low < value < high


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("where", ["one cell", "a row", "the diagonal", "everywhere"])
def test_missing_cells_are_drawn(where):
    values = grid().values.copy()
    cells = {"one cell": (1, 2), "a row": 3, "the diagonal": np.diag_indices(8), "everywhere": ...}[where]
    values[cells] = np.nan
    figure = drawn(draw_grid(grid(values=values)))
    assert all(np.isfinite(figure.axes[0].collections[0].get_clim()))
    assert np.ma.getmaskarray(figure.axes[0].collections[0].get_array()).reshape(8, 8)[cells].all()


def test_words_are_those_given():
    axes, bar = draw_grid(grid(title="a model", subtitle="a subtitle")).axes
    assert axes.get_title() == "a model\na subtitle"
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("layer", "layer", "DOCS")


@pytest.mark.parametrize("title", ["$5", "$\\nosuch$", "a_b {c}", "<svg>&", "100 %"])
def test_any_title_can_be_drawn(title):
    assert figure_bytes(draw_grid(grid(title=title)), "svg")


@pytest.mark.parametrize("count", [8, 126])
@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_same_grid_gives_the_same_bytes(suffix, start, count):
    first, second = (figure_bytes(draw_grid(grid(count)), suffix) for _ in range(2))
    assert first.startswith(start)
    assert first == second
    assert figure_bytes(draw_grid(grid(count, title="another")), suffix) != first


def test_drawing_leaves_no_figure_open_and_needs_no_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    from matplotlib import pyplot

    draw_grid(grid())
    assert pyplot.get_fignums() == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("title", ["\x1b[31mred\x01", "模型", "a\nb", "\ud800"], ids=ascii)
def test_a_title_does_no_harm(title):
    content = figure_bytes(draw_grid(grid(title=title)), "svg")
    ElementTree.fromstring(content)
    assert b"\x1b" not in content
