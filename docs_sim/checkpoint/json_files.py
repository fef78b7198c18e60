"""JSON files of a checkpoint, untrusted: its config, and the index that says which shard holds which tensor."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from docs_sim.checkpoint.file_names import stays_inside
from docs_sim.errors import InputError, shown

_MAX_JSON_BYTES = 100_000_000


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from an untrusted file.

    Raises:
        InputError: if the file cannot be read, is over 100 MB, or holds no JSON object.
    """
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise InputError(f"{path}: is over {_MAX_JSON_BYTES:,} bytes, which is no JSON file of a model")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: is not valid (a JSON {type(content).__name__}, not an object)")
    return content


def read_weight_map(index: Path) -> dict[str, str]:
    """An index of shards: tensor name -> name of a file that lies in the directory of the index, or below it.

    Raises:
        InputError: if it is no such index, or names a shard elsewhere.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InputError(f"{index}: has no valid weight_map (tensor name -> file name)")
    plain = {shard: str(PurePosixPath(shard)) if shard else shard for shard in set(weight_map.values())}
    outside = next((shard for shard in plain if not stays_inside(shard)), None)
    if outside is not None:
        raise InputError(f"{index}: names a shard outside its directory: {shown(outside)}")
    return {name: plain[shard] for name, shard in weight_map.items()}
