"""Everything that runs share: the text, both tokenizers, the teacher with its experts, and the aligned passages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from steadygrad import UsageError

from .alignment import Aligned, Aligner
from .experts import reset_routers
from .measuring import Score, say, score_teacher
from .models import TINY, Pair, Teacher, give_experts, load_student, load_teacher, make_student
from .settings import Settings
from .spelling import load_tokenizer, train_tokenizer
from .text import read_corpus

_LOOKED_AT = 48
"""Passages of the training text that show which neurons belong together."""
_HEARD = 16
"""Passages that the teacher is heard on before and after its split."""
_PROMPT = "The most important thing about reading is"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Speech:
    """The teacher on validation text: before and after its layers were split, and what it says."""

    dense: Score
    routed: Score
    words: str


@dataclass(slots=True)
class Workbench:
    settings: Settings
    device: torch.device
    precision: str
    tokenizer: Tokenizer
    teacher: Teacher
    aligner: Aligner
    train: list[Aligned]
    validation: list[Aligned]
    validation_bytes: int
    validation_text: tuple[str, ...]
    speech: Speech

    def pair(self, *, seed: int, with_teacher: bool) -> Pair:
        """A new student, the same for the same seed, and the teacher with its routers where they began."""
        settings = self.settings
        if settings.student is not None:
            student = load_student(Path(settings.student))
            if student.config.vocab_size != self.tokenizer.get_vocab_size():
                raise UsageError(f"The student in {settings.student} was made for another tokenizer.")
        else:
            student = make_student(
                vocabulary=self.tokenizer.get_vocab_size(), width=settings.width, layers=settings.layers, seed=seed
            )
        reset_routers(self.teacher.model)
        teacher = self.teacher.model if with_teacher else None
        return Pair(student.train(), teacher, self.aligner.first_piece).to(self.device)

    @property
    def aligned_share(self) -> float:
        """Of the student's positions, those where a token of the teacher ends too."""
        return sum(len(row.pairs) for row in self.train) / sum(len(row.student) - 1 for row in self.train)

    @property
    def spelled_share(self) -> float:
        """Of the teacher's tokens, those that are compared."""
        return float((self.aligner.first_piece >= 0).float().mean())


def prepare(settings: Settings, *, say_so: Say = lambda words: None) -> Workbench:
    """Read, train the tokenizer, load and split the teacher, hear it, align."""
    device, precision = choose_device(settings.precision)
    corpus = read_corpus(settings.data, max_bytes=settings.max_bytes)
    say_so(f"text: {len(corpus.train)} passages to learn from, {len(corpus.validation)} to be measured on")
    if settings.student is not None:
        tokenizer = load_tokenizer(find_tokenizer(Path(settings.student)))
    else:
        tokenizer = train_tokenizer(corpus.train, vocabulary=settings.vocabulary)
    # Frozen weights may be fp16: nothing is ever added to them. Trained ones are float32 always.
    dtype = torch.float16 if precision == "fp16" else torch.float32
    teacher = load_teacher(settings.teacher, dtype=dtype, passages=corpus.train)
    teacher.model.to(device)
    speech = _split_and_hear(teacher, corpus.train[:_LOOKED_AT], corpus.validation[:_HEARD], settings, device)
    say_so(
        f"teacher: {teacher.name}, {settings.experts} experts a layer, {settings.top_k} at a time; bits a byte "
        f"{speech.dense.bits_per_byte:.3f} dense, {speech.routed.bits_per_byte:.3f} with experts"
    )
    aligner = Aligner(
        tokenizer, teacher.tokenizer, teacher_begin=teacher.begin, teacher_vocabulary=teacher.vocabulary,
        match=settings.match,
    )  # fmt: skip
    train, validation = aligner.align_all(corpus.train), aligner.align_all(corpus.validation)
    num_bytes = sum(len(tokenizer.decode(list(row.student[1:])).encode()) for row in validation)
    bench = Workbench(
        settings,
        device,
        precision,
        tokenizer,
        teacher,
        aligner,
        train,
        validation,
        num_bytes,
        corpus.validation,
        speech,
    )
    say_so(
        f"aligned: {bench.aligned_share:.0%} of the student's positions; {bench.spelled_share:.1%} of the teacher's "
        "tokens are compared"
    )
    return bench


def find_tokenizer(folder: Path) -> Path:
    """The tokenizer that a student was trained with lies in the folder of its run."""
    for place in (folder, *folder.resolve().parents[:3]):
        if (place / "tokenizer.json").is_file():
            return place / "tokenizer.json"
    raise UsageError(f"There is no tokenizer.json in {folder} or above it, so its student cannot be used.")


def choose_device(precision: str) -> tuple[torch.device, str]:
    """The GPU if there is one, in fp16; else the CPU in float32."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if precision == "auto":
        precision = "fp16" if device.type == "cuda" else "fp32"
    if precision == "fp16" and device.type == "cpu":
        raise UsageError("fp16 needs a GPU: on a CPU pass --precision fp32 or bf16.")
    return device, precision


def _split_and_hear(teacher: Teacher, seen: Any, heard: Any, settings: Settings, device: torch.device) -> Speech:
    dense = score_teacher(teacher, heard, device=device)
    give_experts(teacher, seen, experts=settings.experts, top_k=settings.top_k, shared=settings.shared, device=device)
    routed = score_teacher(teacher, heard, device=device)
    words = say(teacher, _PROMPT, tokens=24, device=device)
    if teacher.name != TINY and not routed.bits_per_byte < dense.bits_per_byte + 0.5:
        raise UsageError(
            f"With {settings.top_k} of {settings.experts} experts the teacher no longer speaks: "
            f"{routed.bits_per_byte:.2f} bits a byte, {dense.bits_per_byte:.2f} before. Raise --top-k or --shared."
        )
    return Speech(dense, routed, f"{_PROMPT}{words}")
