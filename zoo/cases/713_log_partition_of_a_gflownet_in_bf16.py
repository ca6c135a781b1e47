"""Trajectory balance for a GFlowNet: log Z is a parameter started at 150 with its own group and lr 0.1, as one does. The model was cast to
bfloat16, where half an ulp at 150 is 0.5: the policy learns, log Z never moves."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="713_log_partition_of_a_gflownet_in_bf16", source="common report: parameters do not change in pure bf16 training with small updates",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, module="partition", line_marker=None, tensor="partition.logZ", tensor_kind="parameter", first_bad_step=0, bad_rows=None,
             fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"fp32", "lr_up"}


class Partition(nn.Module):
    def __init__(self):
        super().__init__()
        self.logZ = nn.Parameter(torch.tensor(150.0))

    def forward(self):
        return self.logZ


class GFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.partition = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 4)), Partition()


def trajectory_balance(m, b):
    states, actions, log_reward = b
    logp = m.policy(states.to(m.policy[0].weight.dtype)).float().log_softmax(-1)
    logpf = logp.gather(-1, actions[..., None]).squeeze(-1).sum(1)
    return ((m.partition().float() + logpf - log_reward) / 10).square().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = GFN(), torch.Generator().manual_seed(83)
    if fix != "fp32":
        m.to(torch.bfloat16)
    data = [(torch.randn(8, 5, 6, generator=g), torch.randint(0, 4, (8, 5), generator=g), torch.randn(8, generator=g) + 130) for _ in range(12)]
    opt = torch.optim.Adam([{"params": m.policy.parameters(), "lr": 3e-3}, {"params": m.partition.parameters(), "lr": 2.0 if fix == "lr_up" else 0.1}])

    def healthy(log):
        return all(r.loss_ok and r.grad_ok for r in log) and abs(float(m.partition.logZ) - 150.0) > 0.2

    return Case(m, trajectory_balance, data, opt, healthy=healthy)
