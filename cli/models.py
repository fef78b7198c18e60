"""``docs-sim models``: the built-in models and the short names of well-known ones."""

from .options import Debug, Json
from .output import print_lines


def models(json: Json = False, debug: Debug = False) -> None:
    """List the built-in models and the short aliases, and which of them are in the Hugging Face cache."""
    from docs_sim.checkpoint.hub import is_cached
    from docs_sim.checkpoint.source import BUILT_IN, aliases
    from docs_sim.report.files import json_text

    if json:
        cached = {alias: {"id": hub_id, "cached": is_cached(hub_id)} for alias, hub_id in aliases().items()}
        print(json_text({"built_in": BUILT_IN, "aliases": cached}))
        return
    width = max(map(len, [*BUILT_IN, *aliases()]))
    lines = ["Built in:", *(f"  {name:{width}}  {text}" for name, text in BUILT_IN.items()), "", "Short aliases:"]
    lines += [
        f"  {alias:{width}}  {hub_id}{'  (cached)' if is_cached(hub_id) else ''}" for alias, hub_id in aliases().items()
    ]
    print_lines([*lines, "", "Any other MODEL is a directory, a file, or a Hub id (org/name)."])
