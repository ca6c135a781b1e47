"""Memory without values becomes the weights.

What it sees
    `to_empty` in a file that afterwards neither initialises the parameters nor loads any.

Why it hurts
    `to_empty` allocates and writes nothing: the weights are whatever the memory held, often zeros, sometimes NaN or
    1e38. FSDP2 and other set-ups that build on the meta device need a second step that gives them values.

Smallest example
    with torch.device("meta"): model = Net()
    model.to_empty(device="cuda")
    # fixed
    model.to_empty(device="cuda"); model.load_state_dict(weights)

What to do
    Call `reset_parameters()` of every module, the model's own `init_weights()`, or load a state dict, after
    `to_empty`.

Safety
    A note: another file may give them values. Any later call with init, reset, load or copy in its name counts as
    giving values.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to_empty
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.script import Script, last_word
from ...inputs.script_models import optimizer_calls

RULE = Rule("PF413", "empty_weights_kept", "Memory without values becomes the weights.")
GIVES = ("init", "reset", "load", "copy", "fill", "normal_", "uniform_", "restore", "set_model_state", "broadcast")


def of_script(script: Script) -> Iterator[Advice]:
    """Files that make an optimizer or train: elsewhere a caller may load the values."""
    trains = any(True for _ in optimizer_calls(script)) or "backward" in script.called
    for call in script.calls:
        if last_word(call.func) != "to_empty" or not trains or script.untracked(call):
            continue
        later = [last_word(each.func).lower() for each in script.calls if each.lineno > call.lineno]
        if not any(part in word for word in later for part in GIVES):
            yield at(
                RULE, Level.NOTE, script, call, "the weights are uninitialised memory, and nothing sets them",
                help="initialise them (reset_parameters) or load a state dict after to_empty",
            )  # fmt: skip


_TEXT = """
import torch
from torch.distributed.fsdp import fully_shard
with torch.device("meta"):
    model = Net()
fully_shard(model)
model.to_empty(device="cuda")
{then}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
"""
SPECIMENS = [_TEXT.format(then="")]
NEAR_MISSES = [_TEXT.format(then="model.init_weights()"), _TEXT.format(then="model.load_state_dict(state)")]
