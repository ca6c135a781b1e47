"""The optimizer's epsilon is zero, or rounds to zero in the dtype it is added in.

What it sees
    An epsilon of 0, or one below half the smallest number of the dtype of the weights or moments: 1e-8 is 0 in
    float16.

Why it hurts
    Adam divides by the root of the second moment plus epsilon. Where a gradient is zero, as for a token that is not in
    the batch, that is 0/0: NaN in the weights with every gradient finite, so no gradient check sees it.

Smallest example
    torch.optim.AdamW(model.half().parameters(), eps=1e-8)
    # fixed
    torch.optim.AdamW(model.float().parameters(), eps=1e-8)

What to do
    Keep weights and moments in float32. If they must be float16, `eps=1e-4`, which float16 can hold.

Safety
    A fused optimizer adds epsilon in float32 and is not reported for the dtype. A note where something may keep a
    float32 copy of the weights, or where the epsilon may be another one than Adam's.

References
    https://github.com/pytorch/pytorch/issues/147437
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at, setting
from ...inputs.facts import SMALLEST, GroupFacts, Setup
from ...inputs.run_settings import Settings
from ...inputs.script import Script, keyword, last_word
from ...inputs.script_models import loaded_as, may_keep_wide, optimizer_calls

RULE = Rule("PF105", "vanishing_epsilon", "The optimizer's epsilon is zero, or rounds to zero in its dtype.")
HELP = "keep weights and moments in float32, or use an eps that the dtype can hold (1e-4 for float16)"

OF_ADAM = re.compile(r"adam|opt", re.IGNORECASE)


def of_script(script: Script) -> Iterator[Advice]:
    """An epsilon written down, where it is zero or the model beside it is float16."""
    half = any(True for _ in loaded_as(script, "float16"))
    for call in optimizer_calls(script):
        eps = script.literal(keyword(call, "eps"))
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not last_word(call.func).startswith("Adam"):
            continue
        if eps <= 0 or (half and eps <= SMALLEST["float16"] / 2):
            detail = "eps is 0" if eps <= 0 else f"eps={eps:g} is 0 in float16, the dtype of the weights"
            level = Level.NOTE if eps > 0 and may_keep_wide(script) else Level.ERROR
            yield at(RULE, level, script, call, detail, help=HELP)


def of_settings(settings: Settings) -> Iterator[Advice]:
    """Only zero: settings do not tell the dtype of the moments."""
    eps = settings.number("epsilon")
    if eps is not None and eps <= 0 and settings.adam:
        named = any(OF_ADAM.search(".".join(path)) for path in settings.keys("epsilon"))
        plain = named or settings.kind == "transformers"
        level = Level.ERROR if plain else Level.NOTE  # `epsilon: 0` at the top may be that of a policy
        yield setting(RULE, level, settings, "epsilon", "the optimizer's epsilon is 0", help=HELP)


def of_setup(setup: Setup) -> Iterator[Advice]:
    """By the dtypes of every parameter group."""
    for number, group in enumerate(setup.groups):
        if group.eps is None or not group.adam:
            continue
        lost = [dtype for dtype in (*group.dtypes, *group.state_dtypes) if group.eps <= SMALLEST.get(dtype, 0.0) / 2]
        if group.eps <= 0 or (lost and not group.fused):
            detail = "eps is 0" if group.eps <= 0 else f"eps={group.eps:g} is 0 in {lost[0]}"
            yield about(
                RULE, Level.ERROR, f"{group.kind} group {number}", detail, help=HELP, eps=group.eps, dtypes=lost
            )


SPECIMENS = [
    "import torch\nmodel = Net().half()\nopt = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)\n",
    "import torch\nopt = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=0)\n",
    {"adam_epsilon": 0.0, "output_dir": "x"},
    {"optimizer": {"lr": 1e-4, "eps": 0}, "training": {"warmup_steps": 10}},
    {"optimizer.lr": 1e-4, "optimizer.eps": 0, "batch_size": 4},
    Setup(groups=(GroupFacts(eps=1e-8, dtypes=("float16",)),)),
    Setup(groups=(GroupFacts(eps=1e-8, dtypes=("float32",), state_dtypes=("float16",)),)),
]
WARNINGS = ["model.train()\n".join(["", str(SPECIMENS[0])]), *SPECIMENS[1:]]
ONLY_NOTES = [SPECIMENS[0], {"lr": 1e-4, "epsilon": 0, "batch_size": 4, "warmup_steps": 10}]
NEAR_MISSES = [
    "import torch\nmodel = Net().half()\nopt = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)\n",
    "import torch\nmodel = Net()\nopt = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)\n",
    {"adam_epsilon": 1e-8, "output_dir": "x"},
    {"optimizer": {"lr": 1e-4, "eps": 1e-8}, "training": {"warmup_steps": 10}},
    {"optimizer": {"lr": 1e-4, "weight_decay": 0.1}, "model": {"norm": {"eps": 0}}},
    Setup(groups=(GroupFacts(eps=1e-8, dtypes=("bfloat16",)),)),
    Setup(groups=(GroupFacts(eps=1e-8, dtypes=("float16",), fused=True),)),
    Setup(groups=(GroupFacts(kind="SGD", eps=None, dtypes=("float16",)),)),
]
