"""Names for the tensors in steadygrad's own checkpoints and capsules, which are called t0, t1, ... in their file.

The manifest beside the file holds the tree they belong to. It only lends names: without it, or with a damaged one, the
tensors are scanned all the same.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..file_source import Source, Unreadable
from .tensor_span import MAX_NAME, Contents

MAX_MANIFEST_BYTES = 64 << 20
# The tensor file, its manifest, and the key its tree is under.
# A capsule keeps the batch that was refused and the losses it gave, on purpose and with whatever was wrong in them.
EVIDENCE = ("batches.", "state.terms.")
OURS = {"state.safetensors": ("state.json", "data"), "capsule.safetensors": ("capsule.json", "tree")}


def with_our_names(contents: Contents) -> Contents:
    """The same contents with the names of the manifest, where there is one."""
    manifest, key = OURS.get(contents.path.name, ("", ""))
    if not manifest or not all(span.name[:1] == "t" and span.name[1:].isdigit() for span in contents.spans):
        return contents
    tree = _tree(contents.path.with_name(manifest), key)
    if tree is None:
        return contents
    names = _names(tree)
    spans = tuple(
        replace(span, name=names.get(span.name, span.name), evidence=names.get(span.name, "").startswith(EVIDENCE))
        for span in contents.spans
    )
    kind = "steadygrad capsule" if manifest == "capsule.json" else "steadygrad checkpoint"
    return replace(contents, spans=spans, format=kind)


def _tree(path: Path, key: str) -> Any:
    try:
        with Source(path) as source:
            if source.size > MAX_MANIFEST_BYTES:
                return None
            manifest = json.loads(source.read(0, source.size))
    except (Unreadable, ValueError, RecursionError):
        return None
    return manifest.get(key) if isinstance(manifest, dict) else None


def _names(tree: Any) -> dict[str, str]:
    """Which tensor is under which name in the tree, walked without recursion."""
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [("", tree)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("$tensor"), str):
                found.setdefault(value["$tensor"], name[:MAX_NAME])
            elif isinstance(value.get("$pairs"), list):
                pairs = (pair for pair in value["$pairs"] if isinstance(pair, list) and len(pair) == 2)
                waiting += [(_joined(name, pair[0]), pair[1]) for pair in pairs]
            elif isinstance(value.get("$tuple"), list):
                waiting += [(_joined(name, index), item) for index, item in enumerate(value["$tuple"])]
            else:
                waiting += [(_joined(name, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(_joined(name, index), item) for index, item in enumerate(value)]
    return found


def _joined(name: str, part: object) -> str:
    return f"{name}.{part}" if name else str(part)
