"""The work of a plan on several devices at once: a thread for each, which one error or interruption ends for all."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Done = TypeVar("Done")


def run_together(works: Sequence[Iterator[Done]], progress: Callable[[int], None]) -> list[Done]:
    """Everything that ``works`` yield, first that of the first; ``progress`` gets 1 after each, never two at once."""
    stop, lock = threading.Event(), threading.Lock()

    def run(work: Iterator[Done]) -> list[Done]:
        finished: list[Done] = []
        try:
            while not stop.is_set():
                try:
                    finished.append(next(work))
                except StopIteration:
                    break
                with lock:
                    progress(1)
        except BaseException:
            stop.set()
            raise
        return finished

    if len(works) == 1:
        return run(works[0])
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(run, work) for work in works]
        try:
            return [done for future in futures for done in future.result()]
        finally:
            stop.set()


def map_together(
    work: Callable[[Item, torch.device], Done],
    items: Sequence[Item],
    devices: Sequence[torch.device],
    progress: Callable[[int], None],
) -> list[Done]:
    """``work`` of every item on one of the devices, in the order of the items."""
    count = len(devices)

    def on_device(number: int) -> Iterator[Done]:
        return (work(item, devices[number]) for item in items[number::count])

    done = run_together([on_device(number) for number in range(count)], progress)
    places = [place for number in range(count) for place in range(number, len(items), count)]
    return [one for _, one in sorted(zip(places, done, strict=True), key=lambda entry: entry[0])]
