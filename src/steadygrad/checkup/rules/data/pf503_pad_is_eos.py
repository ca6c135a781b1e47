"""The pad token is the end token, and so the end is never learnt.

What it sees
    A script that sets `pad_token = eos_token` and uses the language-modelling collator, which masks pads; or rows whose
    end token is always masked.

Why it hurts
    Masking every pad masks the end token of the answer too. The model never learns to stop, and every generation runs
    into its limit.

Smallest example
    tokenizer.pad_token = tokenizer.eos_token; DataCollatorForLanguageModeling(tokenizer, mlm=False)
    # fixed
    tokenizer.add_special_tokens({"pad_token": "<pad>"}); model.resize_token_embeddings(len(tokenizer))

What to do
    Give the pad its own token (an unused or added one), or mask by the attention mask instead of by the token.

Safety
    Setting it for generation alone is harmless and not reported. A warning only where the file sets the pad token in
    every case and writes the end token into its texts (`text + tokenizer.eos_token`); elsewhere a note, for windows cut
    from a running text have no end tokens to lose.

References
    https://github.com/huggingface/blog/issues/1302
    https://github.com/mlabonne/llm-course/issues/33
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, DataStatistics, Level
from ....records.rules import Rule
from ...advice import about, at
from ...inputs.facts import Data
from ...inputs.script import Script, keyword, last_word

RULE = Rule("PF503", "pad_is_eos", "The pad token is the end token, and so the end is never learnt.")
HELP = "give the pad its own token, or mask labels by the attention mask"


def of_script(script: Script) -> Iterator[Advice]:
    """Needs both: the assignment, and the collator that masks every pad."""
    collators = [call for call in script.calls if last_word(call.func) == "DataCollatorForLanguageModeling"]
    causal = [call for call in collators if script.literal(keyword(call, "mlm")) is False]
    if not causal or _makes_labels(script):
        return
    for node in script.nodes:
        if not isinstance(node, ast.Assign) or last_word(node.targets[0]) not in ("pad_token", "pad_token_id"):
            continue
        if last_word(node.value) in ("eos_token", "eos_token_id"):
            always = not any(isinstance(each, ast.If) for each in script.above(node))
            level = Level.WARNING if always and _writes_ends(script) else Level.NOTE
            yield at(RULE, level, script, node, "the collator masks pads, and with them every end token", help=HELP)


def _writes_ends(script: Script) -> bool:
    """`text + tokenizer.eos_token`, or the same in an f-string."""
    for node in script.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "eos_token" and isinstance(node.ctx, ast.Load):
            around = [each for each in script.above(node)[:2] if isinstance(each, ast.BinOp | ast.JoinedStr)]
            if any(isinstance(each, ast.JoinedStr) or isinstance(each.op, ast.Add) for each in around):
                return True
    return False


def _makes_labels(script: Script) -> bool:
    """Whether the file computes labels itself, so that those of the collator are not used: `labels = ids.clone()`."""
    return any(
        last_word(node.targets[0]) == "labels" and last_word(node.value.func) == "clone"
        for node in script.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    )


def of_data(data: Data) -> Iterator[Advice]:
    """The end token is in the rows and never among the labels."""
    found = data.statistics
    if data.pad is not None and data.pad == data.eos and found.num_rows_with_eos and not found.num_rows_eos_taught:
        yield about(
            RULE,
            Level.WARNING,
            "labels",
            f"{found.num_rows_with_eos} rows hold the end token and none teaches it",
            help=HELP,
        )


_SCRIPT = """
from transformers import AutoTokenizer, DataCollatorForLanguageModeling
tokenizer = AutoTokenizer.from_pretrained("gpt2")
{line}
rows = [text + {end} for text in texts]
collator = DataCollatorForLanguageModeling(tokenizer, mlm={mlm})
"""
SPECIMENS = [
    _SCRIPT.format(line="tokenizer.pad_token = tokenizer.eos_token", mlm=False, end="tokenizer.eos_token"),
    Data(eos=2, pad=2, statistics=DataStatistics(num_rows_seen=9, num_rows_with_eos=9)),
]
WARNINGS = SPECIMENS
ONLY_NOTES = [
    _SCRIPT.format(
        line="if tokenizer.pad_token is None:\n    tokenizer.pad_token = tokenizer.eos_token",
        mlm=False,
        end="tokenizer.eos_token",
    ),
    _SCRIPT.format(line="tokenizer.pad_token = tokenizer.eos_token", mlm=False, end="''")
    + "tokenizer.add_special_tokens({'eos_token': '<|endoftext|>'})\n",
    _SCRIPT.format(line="tokenizer.pad_token = tokenizer.eos_token", mlm=False, end="''"),
    _SCRIPT.format(line="tokenizer.pad_token = tokenizer.eos_token", mlm=False, end="''")
    + "if tokenizer.eos_token is None:\n    raise ValueError\nmodel.generate(pad_token_id=tokenizer.eos_token_id)\n",
]
NEAR_MISSES = [
    _SCRIPT.format(line="tokenizer.pad_token = tokenizer.eos_token", mlm=False, end="tokenizer.eos_token")
    + "for batch in DataLoader(rows, collate_fn=collator):\n    labels = batch['input_ids'].clone()\n",
    _SCRIPT.format(line="tokenizer.pad_token = '<pad>'", mlm=False, end="tokenizer.eos_token"),
    _SCRIPT.format(line="tokenizer.pad_token = tokenizer.eos_token", mlm=True, end="tokenizer.eos_token"),
    Data(eos=2, pad=2, statistics=DataStatistics(num_rows_seen=9, num_rows_with_eos=9, num_rows_eos_taught=9)),
    Data(eos=2, pad=0, statistics=DataStatistics(num_rows_seen=9, num_rows_with_eos=9)),
]
