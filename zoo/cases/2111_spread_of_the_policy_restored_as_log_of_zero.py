"""A Gaussian policy is taken up from a checkpoint that an older version had converted from std to log std. The std of one joint had been stored as 0."""
import math
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2111_spread_of_the_policy_restored_as_log_of_zero", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="state", cause="poisoned_state", op=None, module="policy", line_marker=None, tensor="policy.log_std", tensor_kind="parameter",
             first_bad_step=5, bad_rows=None, fixes_that_work=["restore_weight", "floor"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"restore_weight", "floor"}


class Policy(nn.Module):
    def __init__(s, joints=3):
        super().__init__()
        s.mean, s.log_std = B.mlp(8, 24, joints), nn.Parameter(torch.zeros(joints))

    def forward(s, state, action):
        z = (action - s.mean(state)) / s.log_std.exp()
        return (-0.5 * z.square() - s.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


class Agent(nn.Module):
    def __init__(s):
        super().__init__()
        s.policy, s.value = Policy(), B.mlp(8, 24, 1)


def loss_fn(m, b):
    v = m.value(b["state"]).squeeze(-1)
    advantage = (b["ret"] - v).detach()
    return -(m.policy(b["state"], b["action"]) * advantage).mean() + 0.5 * (b["ret"] - v).square().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Agent()

    def resume(case, i):
        if i == 5 and fix != "restore_weight":
            std = torch.tensor([0.9, 0.0, 0.7])
            if fix == "floor":
                std = std.clamp(min=1e-2)
            case.model.policy.log_std.data.copy_(std.log())

    g = torch.Generator().manual_seed(70)
    data = [dict(state=torch.randn(12, 8, generator=g), action=torch.randn(12, 3, generator=g), ret=torch.randn(12, generator=g)) for _ in range(11)]
    return Case(m, loss_fn, data, B.adam(m, 1e-3), before_step=resume)
