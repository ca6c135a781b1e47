"""Chain of thought: the same task and training as `recipes.sft`, with the worked steps before the answer.

    python -m recipes.cot train [--quick]
    python -m recipes.cot test
    python -m recipes.cot load 47 mile kilometer

"Convert 47 mile to kilometer." is answered with
"1 mile = 1.61 kilometer. 40 * 1.61 = 64.4. 7 * 1.61 = 11.3. 64.4 + 11.3 = 75.7. <answer>75.7</answer>".
A digit times a factor is a small fact, and so is a sum of two numbers; the product of two numbers in one go is not.
"""

from __future__ import annotations

from recipes.sft import train
from recipes.units.command import Recipe, main
from recipes.units.conversions import Question, worked_steps

INSTRUCTION = "You convert units. Show the steps, then reply with <answer>number</answer>."


def reply(question: Question) -> str:
    steps = worked_steps(question)
    return f"{steps} <answer>{steps.removesuffix('.').rpartition(' = ')[2]}</answer>"


RECIPE = Recipe(
    name="cot",
    instruction=INSTRUCTION,
    reply=reply,
    max_new_tokens=128,
    quick={"max_steps": 24, "batch_size": 4},
    quick_questions=16,
)

if __name__ == "__main__":
    raise SystemExit(main(RECIPE, train))
