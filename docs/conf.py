"""How Sphinx makes the documentation site: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

_about = (Path(__file__).parent.parent / "src/steadygrad/__init__.py").read_text(encoding="utf-8")
_version = re.search(r'__version__ = "([^"]+)"', _about)
assert _version is not None

project = "steadygrad"
author = "the steadygrad authors"
release = version = _version[1]
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# A rule's smallest example may be a configuration and not Python; the pages of codes are reached through their table.
suppress_warnings = ["misc.highlighting_failure", "toc.not_included"]
html_theme = "furo"
html_title = f"steadygrad {release}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
