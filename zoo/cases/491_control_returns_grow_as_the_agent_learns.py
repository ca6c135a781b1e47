"""CONTROL: a value function chasing returns that grow from nearly nothing as the agent gets better: the loss rises by orders of magnitude
over the run although nothing is wrong (value clipping and gradient clipping are on)."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="491_control_returns_grow_as_the_agent_learns", source="standard practice in deep RL", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = B.mlp(8, 24, 1), torch.Generator().manual_seed(4), []
    with torch.no_grad():
        m.fc2.weight.mul_(0.01)
        m.fc2.bias.zero_()
    for i in range(16):
        obs = torch.randn(8, 8, generator=g)
        data.append((obs, 0.01 * 1.5**i * (1 + 0.3 * torch.randn(8, generator=g)).abs()))
    return Case(m, lambda m, b: F.mse_loss(m(b[0])[:, 0], b[1]), data, B.adam(m, 3e-3), clip_norm=0.5)
