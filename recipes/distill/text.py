"""Passages to learn from and passages to be measured on, from text files, a folder of them, or the shipped sample."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steadygrad import UsageError

SAMPLE = Path(__file__).parent / "data" / "sample.txt"
_BREAK = re.compile(r"\n%\n|\n[ \t]*\n")  # fortune files part their texts by a line with a %, others by an empty line


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages of at most `max_bytes` bytes. No passage is in both parts."""

    train: tuple[str, ...]
    validation: tuple[str, ...]


def read_corpus(data: str | Path | None, *, max_bytes: int = 400, share: float = 0.1, seed: int = 0) -> Corpus:
    """Read text, cut it into passages, and put `share` of them aside for validation."""
    passages = list(dict.fromkeys(_passages(_texts(Path(data) if data else SAMPLE), max_bytes)))
    if len(passages) < 2:
        raise UsageError(f"There is too little text in {data or SAMPLE}: at least two passages are needed.")
    random.Random(seed).shuffle(passages)
    held_out = max(1, round(share * len(passages)))
    return Corpus(train=tuple(passages[held_out:]), validation=tuple(passages[:held_out]))


def _texts(path: Path) -> Iterator[str]:
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"There is no text in {path}: the folder is empty.")
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except (FileNotFoundError, PermissionError) as error:
            raise UsageError(f"The text {file} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            if not path.is_dir():  # a folder may hold other things beside its texts
                raise UsageError(f"The text {file} is not UTF-8.") from None


def _passages(texts: Iterator[str], max_bytes: int) -> Iterator[str]:
    """Paragraphs, and long ones cut between words."""
    for text in texts:
        for paragraph in _BREAK.split(text):
            words: list[str] = []
            size = 0
            for word in re.findall(r"\s*\S+", paragraph.strip("\n")):
                length = len(word.encode())
                if words and size + length > max_bytes:
                    yield "".join(words)
                    words, size = [], 0
                words.append(word)
                size += length
            if size >= 32:  # shorter ones are titles and signatures
                yield "".join(words)
