"""Putting things into a page that must not become part of it: data that closes no tag, scripts named by their hash."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from markupsafe import Markup

_BREAKS_OUT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"}


def as_json(value: Any) -> Markup:
    """JSON that is safe inside a script element: ASCII, and none of the characters that could end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character, escape in _BREAKS_OUT.items():
        text = text.replace(character, escape)
    return Markup(text)


@cache
def static(name: str) -> Markup:
    """A file that ships with the package, put into the page as it is: it is ours, and holds nothing of a run."""
    text = resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")
    if "</script" in text.lower() or "</style" in text.lower():
        raise ValueError(f"{name} would end the element it is put into")
    return Markup(text)


def content_policy(scripts: list[str]) -> str:
    """A policy that lets the browser run these scripts and load nothing from anywhere.

    Should a name from a run ever break out of its place, it still could not run, for its hash is not listed.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {hashes}; {rest}"
