"""One stored number a weight, times a scale: for the tensor, for each row, or for each block (FP8, INT8)."""

from math import prod
from typing import TYPE_CHECKING

from docs_sim.checkpoint.quantized import Config, Pieces, Whole, raw_tensor, weight_settings

if TYPE_CHECKING:
    from torch import Tensor

FP8 = ("F8_E4M3", "F8_E5M2")


def scaled_weight(weight: str, scale: str, pieces: Pieces, config: Config) -> Whole | None:
    """One number a weight, times a scale for the tensor, each row, or each block."""
    stored, scales = pieces[weight], pieces[scale]
    if len(stored.shape) == 3 and stored.dtype in FP8:
        return _scaled_stack(weight, scale, pieces, config)
    if len(stored.shape) != 2 or len(scales.shape) > 2:
        return None
    grid = scales.shape if len(scales.shape) == 2 else (prod(scales.shape), 1)
    sizes = _block_sizes(stored.shape, grid, _stated_block(config))
    if sizes is None:
        return None
    fits = all(-(-size // step) == n for size, step, n in zip(stored.shape, sizes, grid, strict=True))
    if not fits and prod(scales.shape) != 1:
        return None
    zero = pieces.get(".weight_zero_point")
    if zero is not None and prod(zero.shape) not in (1, prod(scales.shape)):
        return None

    def read(begin: int, end: int) -> "Tensor":
        from docs_sim.checkpoint.unpack import scaled

        return scaled(
            stored.read(begin, end), raw_tensor(scales), sizes, begin, None if zero is None else raw_tensor(zero)
        )

    kind = "FP8" if stored.dtype.startswith("F8") else "INT8"
    return Whole(stored.shape, f"{kind} ({_scale_words(grid)})", read, weight)


def _scaled_stack(weight: str, scale: str, pieces: Pieces, config: Config) -> Whole | None:
    """The same for stacked experts (E, out, in) or (E, in, out), with scales (E, ...) or one."""
    stored, scales = pieces[weight], pieces[scale]
    grid = {0: (1, 1), 1: (1, 1), 3: scales.shape[1:]}.get(len(scales.shape))
    if grid is None or (prod(scales.shape) != 1 and scales.shape[0] != stored.shape[0]):
        return None
    sizes = _block_sizes(stored.shape[1:], grid, _stated_block(config))
    if sizes is None or grid != tuple(-(-size // step) for size, step in zip(stored.shape[1:], sizes, strict=True)):
        return None

    def read(begin: int, end: int) -> "Tensor":
        from docs_sim.checkpoint.unpack import scaled_stack

        codes = stored.read(begin, end)
        return scaled_stack(codes, raw_tensor(scales) if prod(scales.shape) == 1 else scales.read(begin, end), sizes)

    return Whole(stored.shape, f"FP8 ({_scale_words(grid)})", read, weight)


def _stated_block(config: Config) -> tuple[int, ...] | None:
    """The block of a scale (rows, columns) by the config: of FP8 checkpoints, or of compressed-tensors."""
    stated = [config.get("weight_block_size"), *(one.get("block_structure") for one in weight_settings(config))]
    sizes = (tuple(block) for block in stated if isinstance(block, list) and len(block) == 2)
    return next((size for size in sizes if all(type(length) is int and length > 0 for length in size)), None)


def _block_sizes(
    shape: tuple[int, ...], grid: tuple[int, ...], stated: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """As the config states them, or as the scales tell: squares, or runs of a row; None if nothing tells."""
    if prod(grid) == 1 or grid in ((shape[0], 1), (1, shape[1])):
        return (-(-shape[0] // grid[0]), -(-shape[1] // grid[1]))
    if stated is not None:
        return stated
    if 0 in grid or any(size % count for size, count in zip(shape, grid, strict=True)):
        return None
    rows, columns = (size // count for size, count in zip(shape, grid, strict=True))
    # Other blocks are rather something else, such as one scale for each of the matrices that were joined.
    return (rows, columns) if rows in (1, columns) else None


def _scale_words(grid: tuple[int, ...]) -> str:
    return "one scale" if prod(grid) == 1 else "scales of rows" if 1 in grid else "scales of blocks"
