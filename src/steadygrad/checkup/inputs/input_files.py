"""Files as what the doctor can judge: scripts and settings. No file is executed and no pickle is trusted."""

from __future__ import annotations

import bisect
import io
import json
import pickle
import re
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...records.errors import UsageError
from .run_settings import Settings, flatten, kind_of, parts
from .script import Script

CONFIGS = {".yaml", ".yml", ".toml", ".json"}
SCRIPTS = {".py", ".ipynb"}
SAVED = {".bin", ".pt"}
LEFT_OUT = {"node_modules", "site-packages", "__pycache__", "build", "dist"}
KEY = re.compile(r"""(?<![^\s"'{}\[\],:=.])([^\s"'{}\[\],:=.]+)["']?\s*[]:=.]""")
"""A whole word as a key is written in JSON and TOML: before a colon, an equals sign, or in a table's head."""
MOST_BYTES = 20 << 20
MOST_SETTINGS = 20_000
MOST_SAVED_BYTES = 4 << 20


def targets(paths: list[Path]) -> Iterator[Path]:
    """The files behind what was named: a file is itself, a folder every script and saved arguments below it."""
    for path in paths:
        if path.is_dir():
            yield from sorted(found for found in path.rglob("*") if _wanted(found.relative_to(path), found))
        elif path.exists():
            yield path
        else:
            raise UsageError(f"There is no file {path}. Name a script, a configuration, or a saved training_args.bin.")


def _wanted(inside: Path, path: Path) -> bool:
    if any(part in LEFT_OUT or part.startswith(".") for part in inside.parts) or not path.is_file():
        return False
    if "tests" in inside.parts or path.name.startswith("test_") or path.name == "conftest.py":
        return False  # a test trains something for a moment, and often something broken on purpose
    return path.suffix in SCRIPTS | CONFIGS or path.name == "training_args.bin"


def read_target(path: Path) -> Script | Settings:
    """One file as a script or as settings; one clear sentence if it is neither."""
    if path.suffix in SAVED:
        return _read_saved(path)
    text = _text(path)
    match path.suffix:
        case ".py" | "":
            return Script(str(path), text)
        case ".ipynb":
            return Script(str(path), _notebook(path, text))
        case ".yaml" | ".yml":
            return _read_yaml(path, text)
        case ".json":
            return _settings(path, text, _parsed(path, lambda: json.loads(text)))
        case ".toml":
            return _settings(path, text, _parsed(path, lambda: tomllib.loads(text)))
        case other:
            raise UsageError(
                f"{path}: the doctor does not read {other} files. It reads scripts (.py, .ipynb), configurations "
                "(.yaml, .toml, .json) and a saved training_args.bin."
            )


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} has more than {MOST_BYTES >> 20} MiB, which is no script or configuration.")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8, so it is no script or configuration.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None


def _parsed(path: Path, parse: Any) -> Any:
    try:
        return parse()
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise UsageError(f"{path} cannot be parsed: {words}. Nothing in it was checked.") from None


def _notebook(path: Path, text: str) -> str:
    """The code cells one after the other; lines for the shell or for IPython become comments."""
    data = _parsed(path, lambda: json.loads(text))
    cells = data.get("cells", []) if isinstance(data, dict) else []
    lines: list[str] = []
    for cell in cells:
        if not (isinstance(cell, dict) and cell.get("cell_type") == "code"):
            continue
        source = cell.get("source", "")
        whole = "".join(source) if isinstance(source, list) else str(source)
        if whole.lstrip().startswith("%%"):
            continue
        lines += [re.sub(r"^(\s*)([%!?])", r"\1pass  # \2", line) for line in whole.splitlines()]
    return "\n".join(lines) + "\n"


def _settings(path: Path, text: str, data: Any) -> Settings:
    values = flatten(data)
    if len(values) > MOST_SETTINGS:
        return Settings(path=str(path), values={})  # a vocabulary, an index or rows of data
    lines = text.splitlines()
    where = _lines_of_words(lines)
    places = {keys: _line_of_key(where, keys) for keys in values}
    return Settings(path=str(path), values=values, lines=places, kind=kind_of(values), first_line=1, text=tuple(lines))


def _lines_of_words(lines: list[str]) -> dict[str, list[int]]:
    """The lines on which each word stands as a key, found in one pass: a file of data has many keys."""
    where: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        for word in KEY.findall(line):
            where.setdefault(word, []).append(number)
    return where


def _line_of_key(where: dict[str, list[int]], keys: tuple[str, ...]) -> int:
    """Where the last key of a path stands, searched downward key by key."""
    line = 0
    for key in keys:
        numbers = where.get(key, [])
        place = bisect.bisect_left(numbers, line)
        line = numbers[place] if place < len(numbers) else line
    return line + 1


def _read_yaml(path: Path, text: str) -> Settings:
    """YAML through its nodes, which know their lines. Only plain data is made of them: no tag constructs anything."""
    import yaml  # only here: a script needs none of it, and it takes a while

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        words = " ".join(str(error).split())
        raise UsageError(f"{path} cannot be parsed: {words}. Nothing in it was checked.") from None
    values: dict[tuple[str, ...], Any] = {}
    lines: dict[tuple[str, ...], int] = {}
    stack: list[tuple[tuple[str, ...], Any, int]] = [((), root, 1)]
    seen = 0
    while stack:
        keys, node, line = stack.pop()
        seen += 1
        if seen > 100_000 or len(keys) > 50:
            raise UsageError(f"{path} is nested or repeated without end, so it is no configuration.")
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                stack.append(((*keys, *parts(str(key.value))), value, key.start_mark.line + 1))
        elif isinstance(node, yaml.SequenceNode) and any(isinstance(item, yaml.MappingNode) for item in node.value):
            for number, item in enumerate(node.value):
                stack.append(((*keys, str(number)), item, item.start_mark.line + 1))
        elif keys and node is not None:
            values[keys], lines[keys] = _value(yaml.SafeLoader, node), line
    return Settings(
        path=str(path), values=values, lines=lines, kind=kind_of(values), first_line=1, text=tuple(text.splitlines())
    )


def _value(loader: Any, node: Any) -> Any:
    """A scalar or a plain list as Python has it; the text of anything with its own tag."""
    try:
        return loader("").construct_object(node, deep=True)
    except Exception:  # an unknown tag, a date that is none: nothing that a rule could use
        return str(node.value)


# -- saved TrainingArguments


class _Husk:
    """What stands in for every class and function a pickle names. It keeps what it is given and does nothing."""

    given: tuple[Any, ...]
    state: dict[str, Any]

    def __new__(cls, *given: Any, **named: Any) -> _Husk:
        # A pickle may make an object without calling __init__.
        self = super().__new__(cls)
        self.given, self.state = given, dict(named)
        return self

    def __init__(self, *given: Any, **named: Any) -> None:
        """All is done when it is made."""

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.state.update(part)

    def append(self, item: Any) -> None:
        self.given = (*self.given, item)

    def extend(self, items: Any) -> None:
        self.given = (*self.given, *items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.state[str(key)] = value

    def __hash__(self) -> int:
        return id(self)


class _HuskUnpickler(pickle.Unpickler):
    """Reads the shape of a pickle without importing or calling anything that it names."""

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Husk,), {"__module__": "husk"})

    def persistent_load(self, pid: Any) -> Any:
        return None


def _read_saved(path: Path) -> Settings:
    """`training_args.bin`, which transformers writes beside every checkpoint, read without running any of it."""
    try:
        pickled = _pickle_of(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read as saved training arguments: {error}.") from None
    try:
        husk = _HuskUnpickler(io.BytesIO(pickled)).load()
    except Exception as error:  # a pickle may fail in any way; none of its code ran
        raise UsageError(f"{path} holds no saved training arguments: {type(error).__name__}.") from None
    state = husk.state if isinstance(husk, _Husk) else husk if isinstance(husk, dict) else {}
    if "learning_rate" not in state and "output_dir" not in state:
        raise UsageError(f"{path} holds no saved training arguments; `steady scan` looks at checkpoints.")
    values = flatten({key: _word(value) for key, value in state.items() if not key.startswith("_")})
    return Settings(path=str(path), values=values, kind="transformers", saved=True)


def _pickle_of(path: Path) -> bytes:
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    if not is_zip:
        raise UsageError(f"{path} is not in the format torch has used since 1.6; save it again to have it checked.")
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in [*archive.namelist(), ""] if name.endswith("data.pkl") or not name)
        if not name or archive.getinfo(name).file_size > MOST_SAVED_BYTES:
            raise UsageError(f"{path} holds no saved training arguments; `steady scan` looks at checkpoints.")
        return archive.read(name)


def _word(value: Any) -> Any:
    # An enum is pickled as its class called with its value.
    if isinstance(value, _Husk):
        return value.given[0] if len(value.given) == 1 and isinstance(value.given[0], str | int) else None
    return value
