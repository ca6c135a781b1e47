"""A number in YAML is read as text.

What it sees
    A value such as `2e-4`: YAML 1.1, which PyYAML follows, wants a point in it, and makes a string of it otherwise.

Why it hurts
    Some programs convert it, some fail with `'<=' not supported between instances of 'float' and 'str'`, and some
    compare the string.

Smallest example
    learning_rate: 2e-4
    # fixed
    learning_rate: 2.0e-4

What to do
    Write `2.0e-4`.

Safety
    A note: programs that convert by themselves take both spellings.

References
    https://github.com/hiyouga/LlamaFactory/issues/4014
    https://github.com/salesforce/ALBEF/issues/128
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import setting
from ...inputs.run_settings import Settings

RULE = Rule("PF308", "number_as_text", "A number in YAML is read as text.")
NUMBER = re.compile(r"^[+-]?\d+(\.\d*)?[eE][+-]?\d+$")


def of_settings(settings: Settings) -> Iterator[Advice]:
    """YAML for transformers only: OmegaConf and jsonargparse, which others use, read such numbers as numbers."""
    if not settings.path.endswith((".yaml", ".yml")) or settings.kind != "transformers":
        return
    for path, value in sorted(settings.values.items(), key=lambda item: settings.lines.get(item[0], 0)):
        if isinstance(value, str) and NUMBER.match(value):
            mantissa, _, exponent = value.lower().partition("e")
            sign = "" if exponent[0] in "+-" else "+"
            better = f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{exponent}"
            yield setting(
                RULE, Level.NOTE, settings, path[-1], f"{path[-1]}: {value} is text in YAML, not a number",
                help=f"write {better}",
            )  # fmt: skip


SPECIMENS = [
    ("run.yaml", "output_dir: x\nlearning_rate: 2e-4\n"),
    ("run.yml", "num_train_epochs: 3\ntraining:\n  adam_epsilon: 1e-8\n"),
]
NEAR_MISSES = [
    ("run.yaml", "output_dir: x\nlearning_rate: 2.0e-4\nrun_name: run-3e\n"),
    ("omegaconf.yaml", "optimizer:\n  _component_: torch.optim.AdamW\n  lr: 2e-5\noutput_dir: x\n"),
    ("run.json", '{"learning_rate": 2e-4}'),
]
