"""One rank alone decides to skip a batch.

What it sees
    In a distributed script, `if not torch.isfinite(loss): continue` before backward, with no collective in the function
    that would make the ranks agree.

Why it hurts
    The other ranks wait in backward for the one that left. Under DDP its next batch is silently paired with their last
    one, for the rest of the run; under FSDP the job hangs or aborts.

Smallest example
    if torch.isnan(loss): continue  # under DistributedDataParallel
    # fixed
    bad = torch.isnan(loss).float(); dist.all_reduce(bad, dist.ReduceOp.MAX)
    if bad: continue

What to do
    Reduce the flag over all ranks first (`all_reduce` with MAX), or decide after backward from the reduced gradient
    norm, which is the same everywhere. `sg.Guard` and `sg.attach` do the latter.

Safety
    Any collective call in the function counts as agreement. A note under Accelerate, where a single process is usual.

References
    https://github.com/NVIDIA-NeMo/Automodel/pull/2468
    https://github.com/ecmwf/WeatherGenerator/issues/2724
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import inside, kind_of
from ...inputs.loss_expressions import asks_if_finite
from ...inputs.script import Script, last_word

RULE = Rule("PF307", "skip_by_one_rank", "One rank alone decides to skip a batch.")
DISTRIBUTED = {
    "DistributedDataParallel",
    "DDP",
    "FSDP",
    "FullyShardedDataParallel",
    "fully_shard",
    "init_process_group",
    "Accelerator",
}
AGREES = {
    "all_reduce",
    "all_gather",
    "all_gather_object",
    "gather",
    "reduce",
    "broadcast",
    "reduce_dict",
    "gather_for_metrics",
    "all_reduce_mean",
}


def of_script(script: Script) -> Iterator[Advice]:
    """Only conditions about a loss, above the backward of the same function."""
    if not script.words & DISTRIBUTED:
        return
    for node in script.nodes:
        if (
            not isinstance(node, ast.If)
            or not asks_if_finite(node.test)
            or "loss" not in ast.unparse(node.test).lower()
        ):
            continue
        if not any(isinstance(each, ast.Continue) for each in node.body):
            continue
        calls = [each for each in inside(script.scope(node)) if isinstance(each, ast.Call)]
        after = [each for each in calls if kind_of(each) == "backward" and each.lineno > node.lineno]
        agreed = [each for each in calls if last_word(each.func) in AGREES or "reduce" in last_word(each.func)]
        if after and not agreed:
            level = Level.ERROR if script.words & (DISTRIBUTED - {"Accelerator"}) else Level.NOTE
            yield at(
                RULE, level, script, node, "this rank leaves the step while the others wait in backward",
                help="all_reduce the flag with MAX first, or decide from the reduced gradient norm after backward",
            )  # fmt: skip


_LOOP = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(model)
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    bad = torch.isnan(loss).float()
    {agree}
    if torch.isnan(loss):
        continue
    loss.backward()
    optimizer.step()
"""
SPECIMENS = [_LOOP.format(agree="pass")]
WARNINGS = SPECIMENS
ONLY_NOTES = [
    _LOOP.format(agree="pass")
    .replace("torch.nn.parallel import DistributedDataParallel as DDP", "accelerate import Accelerator")
    .replace("DDP(model)", "Accelerator().prepare(model)"),
]
NEAR_MISSES = [
    _LOOP.format(agree="torch.distributed.all_reduce(bad, torch.distributed.ReduceOp.MAX)"),
    _LOOP.format(agree="pass")
    .replace("model = DDP(model)", "")
    .replace("import DistributedDataParallel as DDP", "import x"),
    _LOOP.format(agree="pass").replace("continue", "raise RuntimeError"),
]
