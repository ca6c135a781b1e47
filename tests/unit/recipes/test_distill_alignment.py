"""Two tokenizers meet at bytes, and what the teacher says is told in the student's tokens without losing any of it."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

pytest.importorskip("tokenizers")
from recipes.distill.alignment import Aligner
from recipes.distill.retelling import retell
from recipes.distill.spelling import encode, token_bytes, train_tokenizer
from recipes.distill.text import read_corpus
from tokenizers import Tokenizer, models, pre_tokenizers

from steadygrad import UsageError

PASSAGES = read_corpus(None, max_bytes=200).train[:120]
ODD = "  two  spaces, a tab\tand £60 for a café: naïve \u4e2d\u6587 \U0001f600\nnew line"


@pytest.fixture(scope="module")
def student() -> Tokenizer:
    return train_tokenizer(PASSAGES, vocabulary=320)


@pytest.fixture(scope="module")
def teacher() -> Tokenizer:
    return train_tokenizer(PASSAGES, vocabulary=900)


@pytest.fixture(scope="module")
def aligner(student: Tokenizer, teacher: Tokenizer) -> Aligner:
    return Aligner(student, teacher, teacher_begin=0, teacher_vocabulary=teacher.get_vocab_size() + 3)


def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(student: Tokenizer) -> None:
    spelled = token_bytes(student)
    for text in (*PASSAGES[:20], ODD):
        assert b"".join(spelled[token] for token in encode(student, text)) == text.encode()


@pytest.mark.parametrize("text", [PASSAGES[0], PASSAGES[7], ODD])
def test_paired_positions_have_read_the_same_bytes(
    aligner: Aligner, student: Tokenizer, teacher: Tokenizer, text: str
) -> None:
    row = aligner.align(text)
    assert row is not None
    own, others = token_bytes(student), token_bytes(teacher)
    for at_student, at_teacher in row.pairs:
        read = b"".join(own[token] for token in row.student[1 : at_student + 1])
        assert read == b"".join(others[token] for token in row.teacher[1 : at_teacher + 1])
    # And no such position was missed: every byte where both begin a token, and the beginning.
    ends = [
        set(accumulate((len(t[i]) for i in r[1:]), initial=0)) for t, r in ((own, row.student), (others, row.teacher))
    ]
    assert len(row.pairs) == len((ends[0] & ends[1]) - {len(text.encode())})


def test_a_teacher_token_goes_to_the_student_token_that_begins_its_spelling(
    aligner: Aligner, student: Tokenizer, teacher: Tokenizer
) -> None:
    own, others = token_bytes(student), token_bytes(teacher)
    compared = {number: int(first) for number, first in enumerate(aligner.first_piece) if first >= 0}
    assert len(compared) > 700
    assert all(others[number].startswith(own[first]) for number, first in compared.items())
    assert aligner.first_piece[len(others) :].tolist() == [-1, -1, -1]  # padding of the teacher's vocabulary


def test_a_student_token_that_the_teacher_says_in_two_is_left_out_with_what_it_may_be_taken_for() -> None:
    student = train_tokenizer(["born in 1594 or 1594 and 1594 it was"] * 50, vocabulary=300)
    digits = train_tokenizer(["born in or and it was  "] * 50, vocabulary=300)
    own = token_bytes(student)
    assert b" 1594" in own
    told = Aligner(student, digits, teacher_begin=0, teacher_vocabulary=300).first_piece
    pieces = {own[int(first)] for first in told if first >= 0}
    assert b" 1594" not in pieces
    assert b" " not in pieces  # the teacher's " " may be the beginning of " 1594"
    assert b" born" in pieces or b"born" in pieces or b"bor" in pieces


def test_matching_the_same_tokens_only_leaves_the_others_out(student: Tokenizer, teacher: Tokenizer) -> None:
    same = Aligner(student, teacher, teacher_begin=0, teacher_vocabulary=teacher.get_vocab_size() + 3, match="same")
    own, others = token_bytes(student), token_bytes(teacher)
    kept = {number for number in range(len(others)) if same.first_piece[number] >= 0}
    assert all(own[int(same.first_piece[number])] == others[number] for number in kept)
    assert kept == {number for number, raw in enumerate(others) if raw and raw in own}


def test_tokenizers_that_share_nothing_are_named_in_one_sentence(student: Tokenizer) -> None:
    numbers = Tokenizer(models.WordLevel({"[UNK]": 0, "\u4e00": 1}, unk_token="[UNK]"))
    numbers.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(UsageError, match="share nothing"):
        Aligner(student, numbers, teacher_begin=0, teacher_vocabulary=2).align_all(PASSAGES[:5])
    with pytest.raises(UsageError, match="share nothing"):
        Aligner(student, student, teacher_begin=0, teacher_vocabulary=2)  # two marks, no text


def test_retold_probabilities_are_the_sums_of_those_that_begin_alike() -> None:
    first = torch.tensor([2, 0, 2, -1, 1, 0])
    logits = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    log_p, told = retell(logits, first, 4)
    p = logits[:, [0, 1, 2, 4, 5]].softmax(-1)  # without the fourth, which cannot be spelled
    wanted = torch.stack([p[:, 1] + p[:, 4], p[:, 3], p[:, 0] + p[:, 2], torch.zeros(5)], dim=-1)
    torch.testing.assert_close(log_p.exp(), wanted)
    torch.testing.assert_close(told, 1 - logits.softmax(-1)[:, 3])


def test_the_gradient_of_retelling_is_that_of_finite_differences() -> None:
    first = torch.tensor([2, 0, 2, -1, 1, 0])
    logits = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: retell(given, first, 3)[0], (logits,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_retelling_extreme_logits_gives_no_nan_in_either_direction(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 300, dtype=dtype)
    logits[0, 7], logits[1] = 60000.0, torch.linspace(-300, 300, 300, dtype=torch.float32).to(dtype)
    logits.requires_grad_(True)
    told, _ = retell(logits, torch.arange(300) % 40, 41)
    assert not told.isnan().any()
    assert bool((told[:, 40] == -torch.inf).all())  # no teacher token begins with it
    told[told > -torch.inf].sum().backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
