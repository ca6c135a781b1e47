"""Prompts for generation are padded on the right.

What it sees
    A script that sets `padding_side="right"` and generates from padded batches; or rows meant for generation with pads
    behind them.

Why it hurts
    A decoder continues after the last token. With pads there it continues the padding, and rewards and samples of every
    shorter prompt in the batch are worthless.

Smallest example
    tokenizer.padding_side = "right"; model.generate(**tokenizer(prompts, padding=True, return_tensors="pt"))
    # fixed
    tokenizer.padding_side = "left"; model.generate(**tokenizer(prompts, padding=True, return_tensors="pt"))

What to do
    `padding_side="left"` for generation; right is fine for training.

Safety
    Encoder-decoder models pad on the right and are not reported; nor are batches of one prompt, or an engine that pads
    by itself. A note for a script, for prompts of one length have no pads; a warning for rows that have them.

References
    https://github.com/huggingface/transformers/issues/26569
    https://github.com/deepspeedai/DeepSpeedExamples/issues/637
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at
from ...inputs.facts import Data
from ...inputs.loop_calls import owner_of
from ...inputs.script import Script, keyword, last_word

RULE = Rule("PF504", "padding_side", "Prompts for generation are padded on the right.")
ENGINES = re.compile(r"(^|[._])(v?llm|engine|client|server|backend)$", re.IGNORECASE)
HELP = 'padding_side="left" where prompts are padded for generation'


def of_script(script: Script) -> Iterator[Advice]:
    """Needs a generate call, a tokenizer call that pads, and a side that is right and never left."""
    loads = script.imports("transformers") and any(
        word.endswith(("ForCausalLM", "LMHeadModel")) for word in script.words
    )
    generates = loads and _generates(script) and "Seq2Seq" not in script.text and "T5" not in script.text
    pads = any(script.literal(keyword(call, "padding")) in (True, "longest", "max_length") for call in script.calls)
    if not generates or not pads or '"left"' in script.text or "'left'" in script.text:
        return
    for node in script.nodes:
        if isinstance(node, ast.Assign) and last_word(node.targets[0]) == "padding_side":
            value: ast.expr | None = node.value
        elif isinstance(node, ast.Call) and keyword(node, "padding") is None:
            value = keyword(node, "padding_side")
        else:
            continue
        if script.literal(value) == "right":
            yield at(RULE, Level.NOTE, script, node, "prompts are padded on the right and generated from", help=HELP)
            return


def _generates(script: Script) -> bool:
    """Whether a model of transformers generates, and not an engine, which pads by itself."""
    calls = [call for call in script.calls if last_word(call.func) == "generate"]
    return any(not ENGINES.search(owner_of(call)) and keyword(call, "sampling_params") is None for call in calls)


def of_data(data: Data) -> Iterator[Advice]:
    """Only for rows that shall be generated from."""
    if data.generates and data.num_right_padded:
        yield about(
            RULE, Level.WARNING, "input_ids", f"{data.num_right_padded} prompts have pads behind them", help=HELP
        )


SPECIMENS = [
    """
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("gpt2")
tokenizer = AutoTokenizer.from_pretrained("gpt2", padding_side="right")
batch = tokenizer(prompts, padding=True, return_tensors="pt")
model.generate(**batch)
""",
    Data(generates=True, num_right_padded=3),
]
NEAR_MISSES = [
    """
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("x")
answers = [tokenizer.decode(model.generate(**tokenizer(prompt))) for prompt in prompts]
ids = tokenizer(answers, padding=True, padding_side="right").input_ids
""",
    """
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("x")
tokenizer = AutoTokenizer.from_pretrained("x", padding_side="right")
scores = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
texts = self.llm.generate(prompts=prompts, sampling_params=sampling)
""",
    """
import torch
from transformers import AutoTokenizer
class Runner:
    def load(self):
        self.tokenizer = AutoTokenizer.from_pretrained("gpt2")
        self.tokenizer.padding_side = "right"
    def run(self, prompts):
        return self.engine.generate(self.tokenizer(prompts, padding=True).input_ids)
""",
    """
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("gpt2", padding_side="left")
batch = tokenizer(prompts, padding=True, return_tensors="pt")
model.generate(**batch)
""",
    """
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("gpt2", padding_side="right")
batch = tokenizer(texts, padding=True, return_tensors="pt")
loss = model(**batch).loss
""",
    Data(generates=False, num_right_padded=3),
    Data(generates=True, num_left_padded=3),
]
