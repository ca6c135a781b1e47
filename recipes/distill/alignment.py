"""Where teacher and student stand at the same byte, and what the teacher says there in the student's tokens.

The student is about to say its next token at some byte of the text. If a token of the teacher ends at that byte too,
the teacher's distribution over *its* next token is about the same bytes. Each of its tokens begins, in the student's
spelling, with one token of the student: that one gets its probability. Comparing only tokens that both vocabularies
have would discard the teacher's opinion wherever it says a word that the student has to spell.

One thing cannot be told so. Where the student has a token for what the teacher says in two (" 1594" for " ", "1" and
more), the teacher's first piece may mean that token or another. Those student tokens, and those that such pieces would
be taken for, are left out of the comparison on both sides. Kept in, the teacher would teach that " 1594" never comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from steadygrad import UsageError

from .spelling import BEGIN, encode, mark, token_bytes


@dataclass(frozen=True, slots=True)
class Aligned:
    """One passage for both. Both rows begin with a mark, so position i is what is known before token i of the text.

    `pairs` are (student position, teacher position) at the same byte, where a next token is still to come.
    """

    student: tuple[int, ...]
    teacher: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]


class Aligner:
    """Brings two tokenizers together.

    `first_piece`: by teacher token, the student token that begins its spelling; -1 if it is not compared.
    """

    def __init__(
        self, student: Tokenizer, teacher: Any, *, teacher_begin: int, teacher_vocabulary: int, match: str = "begins"
    ) -> None:
        self._student, self._teacher = student, teacher
        self._student_bytes, self._teacher_bytes = token_bytes(student), token_bytes(teacher)
        self._student_begin = mark(student, BEGIN)
        self._teacher_begin = teacher_begin
        make = {"begins": self._told, "every": self._spelled, "same": self._same}
        self.first_piece = make[match](teacher_vocabulary)
        if int((self.first_piece >= 0).sum()) == 0:
            raise UsageError(
                "The two tokenizers share nothing: no token of the teacher can be spelled with tokens of the student."
            )

    def align(self, text: str) -> Aligned | None:
        """The passage as both read it; None where a tokenizer changes the text, so that bytes cannot be compared."""
        student, teacher = encode(self._student, text), encode(self._teacher, text)
        raw = text.encode()
        if not student or b"".join(self._student_bytes[i] for i in student) != raw:
            return None
        if b"".join(self._teacher_bytes[i] for i in teacher) != raw:
            return None
        ends = {0: 0} | {end: place for place, end in enumerate(_ends(teacher, self._teacher_bytes), start=1)}
        starts = [0, *_ends(student, self._student_bytes)[:-1]]
        return Aligned(
            student=(self._student_begin, *student),
            teacher=(self._teacher_begin, *teacher),
            pairs=tuple((place, ends[byte]) for place, byte in enumerate(starts) if byte in ends),
        )

    def align_all(self, passages: Sequence[str]) -> list[Aligned]:
        rows = [row for row in map(self.align, passages) if row is not None and row.pairs]
        if not rows:
            raise UsageError(
                "The two tokenizers share nothing: in none of the passages do they stand at the same byte of the text."
            )
        return rows

    def _same(self, teacher_vocabulary: int) -> Tensor:
        """Only tokens that both have; -1 for the others, whose probability is then thrown away. For comparison."""
        own = {raw: number for number, raw in enumerate(self._student_bytes) if raw}
        same = [own.get(raw, -1) for raw in self._teacher_bytes[:teacher_vocabulary]]
        return torch.tensor([*same, *[-1] * (teacher_vocabulary - len(same))])

    def _told(self, teacher_vocabulary: int) -> Tensor:
        """The first pieces, less those that may mean a longer token of the student."""
        first = self._spelled(teacher_vocabulary)
        reached = set(first.tolist())
        longer = [number for number, raw in enumerate(self._student_bytes) if raw and number not in reached]
        spelled = (self._by_teacher(self._student_bytes[number]) for number in longer)
        unsure = {int(first[pieces[0]]) for pieces in spelled if pieces and pieces[0] < teacher_vocabulary}
        return torch.where(torch.isin(first, torch.tensor(sorted({*longer, *unsure}))), -1, first)

    def _by_teacher(self, raw: bytes) -> list[int]:
        try:
            return encode(self._teacher, raw.decode())
        except UnicodeDecodeError:
            return []

    def _spelled(self, teacher_vocabulary: int) -> Tensor:
        """-1 for marks, for padding of the vocabulary, and for tokens that the student cannot spell."""
        first = torch.full((teacher_vocabulary,), -1, dtype=torch.long)
        single = {raw: number for number, raw in enumerate(self._student_bytes) if len(raw) == 1}
        for number, raw in enumerate(self._teacher_bytes[:teacher_vocabulary]):
            if not raw:
                continue
            try:
                spelled = encode(self._student, raw.decode())
            except UnicodeDecodeError:  # a part of a character: it begins with its first byte
                spelled = []
            if spelled and self._student_bytes[spelled[0]] and raw.startswith(self._student_bytes[spelled[0]]):
                first[number] = spelled[0]
            else:
                first[number] = single.get(raw[:1], -1)
        return first


def _ends(tokens: Sequence[int], spelled: Sequence[bytes]) -> list[int]:
    """The byte after each token."""
    return list(accumulate(len(spelled[token]) for token in tokens))
