"""How good a model is: `accuracy` and `answer_rate` over questions it was not trained on, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base_llm import BaseLLM
from .conversions import Question, is_right


@dataclass(frozen=True, kw_only=True)
class Score:
    """`answer_rate`: the share of replies with a number in answer tags. `accuracy`: the share that is right."""

    accuracy: float
    answer_rate: float
    num_questions: int
    examples: tuple[tuple[str, str, str], ...] = ()
    """A few questions, the true answer, and what the model said."""


def score(llm: BaseLLM, asked: Sequence[Question], *, max_new_tokens: int, title: str = "Testing") -> Score:
    said = [only for (only,) in llm.generate([str(q) for q in asked], max_new_tokens=max_new_tokens, title=title)]
    found = [llm.answer_in(text) for text in said]
    right = [is_right(number, question) for number, question in zip(found, asked, strict=True)]
    return Score(
        accuracy=sum(right) / len(asked),
        answer_rate=sum(number is not None for number in found) / len(asked),
        num_questions=len(asked),
        examples=tuple((str(q), q.answer, text.strip()) for q, text in list(zip(asked, said, strict=True))[:5]),
    )


def table(scores: dict[str, Score]) -> str:
    """One line a model, in Markdown."""
    lines = ["| model | accuracy | answer_rate | questions |", "|---|---|---|---|"]
    lines += [f"| {name} | {s.accuracy:.3f} | {s.answer_rate:.3f} | {s.num_questions} |" for name, s in scores.items()]
    return "\n".join(lines)
