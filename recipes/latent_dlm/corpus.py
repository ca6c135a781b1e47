"""Real sentences: a few thousand that are shipped, a file of one's own, or those of a dictionary, and their tokens.

`python -m recipes.latent_dlm.corpus wn.dict.dz gcide.dict.dz -o sentences.txt` reads the dictionaries that Debian
packages as dict-wn (WordNet 3.0) and dict-gcide (Webster's 1913), and writes one sentence a line. Definitions make a
good corpus for a model that is trained for minutes: they are short, real, and about everything.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import steadygrad as sg

SAMPLE = Path(__file__).parent / "data" / "sentences.txt.gz"
MASK, END = "[mask]", "[end]"
MASK_ID, END_ID = 0, 1
MOST_WORDS = 28

_PLAIN = re.compile(r"[a-z ,;'()\-]+")
_SENSE = re.compile(r"^ {4}(?:(?:n|v|adj|adv) )?(?:\d+)?: ")
_OLD_WORDS = re.compile(r"\b(see|cf|pl|imp|pret|thou|thy|thee|hath|webster|obs|the same as)\b")


def read_sentences(corpus: str, most: int | None = None) -> list[str]:
    """The sentences of `sample` or of a text file (also .gz), in order and without repetitions."""
    path = SAMPLE if corpus == "sample" else Path(corpus)
    if not path.is_file():
        raise sg.UsageError(f"data.corpus {corpus!r} is no file. Pass `sample`, or a file with one sentence a line.")
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    found = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if len(found) < 10:
        raise sg.UsageError(f"{path} holds {len(found)} sentences, which is too few to train and validate on.")
    return found[:most]


def train_tokenizer(sentences: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: any text has tokens, and 0 and 1 are the mask and the end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[MASK, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def tokenise(tokenizer: Tokenizer, sentences: list[str], seq_len: int) -> list[list[int]]:
    """Each sentence with its end and padded with ends; one that is too long is cut, and then has no end."""
    made = []
    for encoding in tokenizer.encode_batch(sentences):
        ids = encoding.ids[:seq_len]
        made.append(ids + [END_ID] * (seq_len - len(ids)))
    return made


def as_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The words up to the end; a token that is still hidden shows as an underscore."""
    kept = ids[: ids.index(END_ID)] if END_ID in ids else ids
    words: list[str] = []
    run: list[int] = []
    for token in [*kept, MASK_ID]:
        if token != MASK_ID:
            run.append(token)
            continue
        words += [str(tokenizer.decode(run)).strip()] if run else []
        words.append("_")
        run = []
    return " ".join(words[:-1])


# -- dictionaries


def wordnet(text: str) -> Iterator[str]:
    """Definitions and examples of WordNet in the format of dictd."""
    for sense in _senses(text):
        sense = re.sub(r"\[(?:syn|ant|also): .*?\]", "", sense)
        examples = re.findall(r'"([^"]+)"', sense)
        definition = re.sub(r'"[^"]*"(?: *- *[^;"]*)?', "", sense)
        for found in (definition, *examples):
            if (sentence := _clean(found)) and 3 <= len(sentence.split()) <= MOST_WORDS:
                yield sentence


def _senses(text: str) -> Iterator[str]:
    held: list[str] = []
    for line in [*text.splitlines(), ""]:
        begins = _SENSE.match(line)
        if held and not begins and line.startswith("     "):
            held.append(line.strip())
            continue
        if held:
            yield " ".join(held)
        held = [line[begins.end() :].strip()] if begins else []


def webster(text: str) -> Iterator[str]:
    """The definitions of Webster's of 1913 in the format of dictd, less what only a dictionary would say."""
    for paragraph in re.split(r"\n\s*\n|\n +\[1913 Webster\][^\n]*", text):
        if "\\" in paragraph or not paragraph.startswith(" "):
            paragraph = "\n".join(line for line in paragraph.splitlines() if line.startswith("   "))
        paragraph = re.sub(r"\s+", " ", paragraph).strip()
        paragraph = re.split(r"--[A-Z]|\{", paragraph)[0]
        paragraph = re.sub(r"\[[^\]]*\]", "", paragraph)
        paragraph = re.sub(r"^(\d+\. )?(\([a-zA-Z. ]+\) )*", "", paragraph)
        for found in re.split(r"(?<=\.) ", paragraph):
            sentence = _clean(found) if found.endswith(".") else ""
            if 4 <= len(sentence.split()) <= MOST_WORDS and not _OLD_WORDS.search(sentence):
                yield sentence


def _clean(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip(" .;:,").lower()
    return text if _PLAIN.fullmatch(text) else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.latent_dlm.corpus", description=__doc__)
    parser.add_argument("dictionaries", nargs="+", type=Path, help="wn.dict.dz and gcide.dict.dz, or either")
    parser.add_argument("-o", "--output", type=Path, default=Path("sentences.txt"))
    arguments = parser.parse_args()
    found: dict[str, None] = {}
    for path in arguments.dictionaries:
        text = gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")
        read = wordnet if path.name.startswith("wn") else webster
        found |= dict.fromkeys(read(text))
    arguments.output.write_text("\n".join(found) + "\n", encoding="utf-8")
    print(f"{len(found)} sentences in {arguments.output}")


if __name__ == "__main__":
    main()
