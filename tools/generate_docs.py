"""Write the pages made from the source: docs/codes from the rules, docs/api from docstrings, docs/commands.md.

python tools/generate_docs.py            writes them
python tools/generate_docs.py --check    writes nothing and exits with 1 if one is not current
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from typer.main import get_command

from steadygrad.commands import EPILOG, make_app
from steadygrad.records import rules
from steadygrad.reporters.terminal.rule_page import FAMILIES

sys.path.insert(0, str(Path(__file__).parent))
from api_pages import PAGES, api_page

DOCS = Path(__file__).resolve().parent.parent / "docs"
MADE = "<!-- Made by tools/generate_docs.py; edit the source instead. -->"


def code_page(page: rules.RulePage) -> str:
    """One rule as Markdown."""
    parts = [MADE, f"# {page.code} `{page.slug}`", page.summary]
    for heading in rules.HEADINGS:
        if heading not in page.sections:
            continue
        text = dedent(page.sections[heading])
        parts.append(f"## {heading}")
        parts.append(f"```\n{text}\n```" if heading == "Smallest example" else text)
    return "\n\n".join(parts) + "\n"


def code_index(pages: tuple[rules.RulePage, ...]) -> str:
    """All rules, family by family."""
    parts = [MADE, "# Codes", "`steady explain CODE` prints the same pages. A code is never renumbered or reused."]
    for prefix, title in FAMILIES.items():
        family = [page for page in pages if page.code.startswith(prefix)]
        if family:
            rows = "\n".join(f"| [{p.code}]({p.code}.md) | `{p.slug}` | {p.summary} |" for p in family)
            parts.append(f"## {prefix}: {title}\n\n| code | name | summary |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Every verb with its arguments and options."""
    command: Any = get_command(make_app())
    parts = [MADE, "# The command `steady`", command.help, EPILOG]
    for name, verb in sorted(command.commands.items()):
        usage = " ".join(["steady", name, *(_place(p) for p in verb.params if p.param_type_name == "argument")])
        parts += [f"## `{usage}`", inspect.cleandoc(verb.help or "")]
        rows = "\n".join(f"| {_spelling(p)} | {p.help or ''} | {_default(p)} |" for p in verb.params)
        if rows:
            parts.append(f"| argument | what it is | default |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _place(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_place(parameter)}`"
    takes = "" if parameter.is_flag else f" {parameter.name.upper().replace('_', '-')}"
    return f"`{parameter.opts[0]}{takes}`"


def _default(parameter: Any) -> str:
    if parameter.default is None or parameter.default is False or parameter.required:
        return "required" if parameter.required else ""
    return f"`{parameter.default}`"


def made_pages() -> dict[Path, str]:
    """Every generated page and what it must hold."""
    found = rules.pages()
    pages = {DOCS / "codes" / f"{page.code}.md": code_page(page) for page in found}
    pages[DOCS / "codes" / "README.md"] = code_index(found)
    pages[DOCS / "commands.md"] = commands_page()
    pages |= {DOCS / "api" / f"{name}.md": f"{MADE}\n\n{api_page(name)}" for name in PAGES}
    return pages


def stale(pages: dict[Path, str], docs: Path = DOCS) -> list[str]:
    """The pages on disk that are missing, differ, or belong to no rule any more."""
    wrong = [path for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    orphans = [path for folder in ("codes", "api") for path in (docs / folder).glob("*.md") if path not in pages]
    return sorted(str(path.relative_to(docs)) for path in (*wrong, *orphans))


def main() -> int:
    pages = made_pages()
    wrong = stale(pages)
    if "--check" in sys.argv[1:]:
        print("\n".join(f"docs/{name} is not current: run python tools/generate_docs.py" for name in wrong))
        return 1 if wrong else 0
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in [path for folder in ("codes", "api") for path in (DOCS / folder).glob("*.md")]:
        if path not in pages:
            path.unlink()
    print(f"{len(pages)} pages, {len(wrong)} of them changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
