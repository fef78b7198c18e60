"""``docs-sim models``: the built-in models and the short names of well-known ones."""

from docs_sim.errors import InputError

from .options import Debug, Json
from .output import complain, print_lines, print_result


def models(json: Json = False, debug: Debug = False) -> None:
    """List the built-in models and the short aliases, and which of them are in the Hugging Face cache."""
    from docs_sim.checkpoint.source import BUILT_IN, aliases
    from docs_sim.report.files import json_text

    cached = _cached(list(aliases().values()))
    if json:
        entries = {alias: {"id": hub_id, "cached": cached[hub_id]} for alias, hub_id in aliases().items()}
        print_result(json_text({"built_in": BUILT_IN, "aliases": entries}))
        return
    width = max(map(len, [*BUILT_IN, *aliases()]))
    lines = ["Built in:", *(f"  {name:{width}}  {text}" for name, text in BUILT_IN.items()), "", "Short aliases:"]
    lines += [
        f"  {alias:{width}}  {hub_id}{'  (cached)' if cached[hub_id] else ''}" for alias, hub_id in aliases().items()
    ]
    print_lines([*lines, "", "Any other MODEL is a directory, a file, or a Hub id (org/name)."])


def _cached(hub_ids: list[str]) -> dict[str, bool | None]:
    """Which models are in the cache; None where that cannot be found out."""
    from docs_sim.checkpoint.hub import is_cached

    try:
        return {hub_id: is_cached(hub_id) for hub_id in hub_ids}
    except InputError as error:
        complain(f"warning: {error}")
        return dict.fromkeys(hub_ids)
