"""Rules over the record of a loop, one error a file. They import no torch.

Each module has RULE, judge, SPECIMEN and NEAR_MISS.
"""

from __future__ import annotations

from types import ModuleType

from ....records import Finding
from ..loop_record import LoopRecord
from .data import (
    aliased_samples,
    constant_inputs,
    repeated_batch,
    samples_rewritten,
    sorted_by_class,
    worker_same_seed,
)
from .gradients import (
    accumulation_cleared,
    accumulation_tail_dropped,
    accumulation_weighting,
    missing_zero_grad,
    zero_grad_before_step,
)
from .modes import eval_mode_in_training, statistics_never_move, train_mode_in_eval
from .rates import clip_throttles, clipped_before_backward, lr_zero, schedule_of_another_optimizer, wrong_param_group_lr
from .state import (
    dtype_downcast_of_moments,
    ema_never_updated,
    lora_inactive,
    loss_never_changes,
    momentum_not_restored,
    nothing_loaded,
    replica_drift,
    update_lost_in_copy,
)

ALL: tuple[ModuleType, ...] = (
    missing_zero_grad,
    zero_grad_before_step,
    accumulation_cleared,
    accumulation_tail_dropped,
    lr_zero,
    wrong_param_group_lr,
    schedule_of_another_optimizer,
    clip_throttles,
    clipped_before_backward,
    eval_mode_in_training,
    train_mode_in_eval,
    statistics_never_move,
    momentum_not_restored,
    dtype_downcast_of_moments,
    lora_inactive,
    loss_never_changes,
    update_lost_in_copy,
    repeated_batch,
    sorted_by_class,
    samples_rewritten,
    aliased_samples,
    constant_inputs,
    nothing_loaded,
    ema_never_updated,
    replica_drift,
    worker_same_seed,
    accumulation_weighting,
)


def judge(record: LoopRecord) -> list[Finding]:
    """What the rules see in the record after its last update. Pure."""
    return [found for module in ALL if (found := module.judge(record)) is not None]
