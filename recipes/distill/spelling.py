"""The student's tokenizer, and what the tokens of any tokenizer are in bytes.

Two tokenizers have nothing in common but the bytes of the text. So everything that compares teacher and student goes
through them: where a token ends, and how the student would spell what the teacher says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from steadygrad import UsageError

BEGIN, PAD = "<begin>", "<pad>"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies: itself if it can be printed, else the next
    free one from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


def train_tokenizer(passages: Sequence[str], *, vocabulary: int) -> Tokenizer:
    """A byte-level BPE of that many tokens, learnt from the passages. Deterministic."""
    if vocabulary < 258:
        raise UsageError(f"A vocabulary of {vocabulary} is too small: 256 bytes and two marks need 258.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        passages,
        trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=[BEGIN, PAD], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )  # fmt: skip
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise UsageError(f"The tokenizer {path} cannot be read: {error}") from None


def token_bytes(tokenizer: Any) -> list[bytes]:
    """The bytes of every token by its number; b"" for marks that stand for no text.

    Takes a `tokenizers.Tokenizer` or the fast tokenizer of a transformers model, byte-level or SentencePiece.
    """
    inner: Tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    marks = {number for number, token in inner.get_added_tokens_decoder().items() if token.special}
    alphabet = _byte_alphabet()
    found = [b""] * inner.get_vocab_size(with_added_tokens=True)
    for token, number in inner.get_vocab(with_added_tokens=True).items():
        if number in marks or number >= len(found):
            continue
        if (byte := _BYTE_TOKEN.fullmatch(token)) is not None:
            found[number] = bytes([int(byte[1], 16)])
        elif all(letter in alphabet for letter in token):
            found[number] = bytes(alphabet[letter] for letter in token)
        else:
            found[number] = token.replace("\u2581", " ").encode()
    return found


def mark(tokenizer: Tokenizer, word: str) -> int:
    """The number of a mark such as BEGIN; one clear sentence where the tokenizer has none."""
    number = tokenizer.token_to_id(word)
    if number is None:
        raise UsageError(f"The student's tokenizer has no {word}, so it was not made by this recipe.")
    return int(number)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token numbers of a text, with no marks added."""
    inner: Tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return list(inner.encode(text, add_special_tokens=False).ids)
