"""CONTROL: a value network re-initialises its last layer and that layer's optimizer state every six steps (resets against primacy bias).
The loss jumps back by design."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="685_control_agent_resets_its_head", source="https://arxiv.org/abs/2205.07802 (the primacy bias: periodic resets)", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 32), nn.ReLU()), nn.Linear(32, 1)

    def forward(self, s):
        return self.head(self.body(s)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Critic(), torch.Generator().manual_seed(4)

    def reset(case, i):
        if i and i % 6 == 0:
            case.model.head.reset_parameters()
            for p in case.model.head.parameters():
                case.optimizer.state.pop(p, None)

    s = torch.randn(32, 6, generator=g)
    data = [(s, s @ torch.randn(6, generator=torch.Generator().manual_seed(5)) + 2.0)] * 18  # a small replay buffer, read whole
    return Case(m, lambda m, b: F.mse_loss(m(b[0]), b[1]), data, torch.optim.Adam(m.parameters(), lr=0.1), before_step=reset)
