"""CONTROL: ReLoRA: every six steps the adapter is merged into the frozen weight, A is drawn anew, B set to zero and the optimizer state dropped. Right after that half of the adapter gets exactly zero gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="988_control_relora_merges_and_starts_again", source="https://arxiv.org/abs/2307.05695", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class LoRA(nn.Module):
    def __init__(s, i, o, r=4):
        super().__init__()
        s.base = nn.Linear(i, o).requires_grad_(False)
        s.A, s.B = nn.Parameter(torch.randn(r, i) / i ** 0.5), nn.Parameter(torch.zeros(o, r))

    def forward(s, x):
        return s.base(x) + (x @ s.A.T) @ s.B.T


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2, s.out = LoRA(8, 32), LoRA(32, 32), nn.Linear(32, 1)

    def forward(s, x):
        return s.out(torch.tanh(s.l2(torch.tanh(s.l1(x)))))


def make(seed=0, fix=None):
    m, data, g = Net(), B.xy(20, bs=16), torch.Generator().manual_seed(88)

    def merge(case, i):
        if i and i % 6 == 0:
            with torch.no_grad():
                for layer in (m.l1, m.l2):
                    layer.base.weight += layer.B @ layer.A
                    layer.A.copy_(torch.randn(layer.A.shape, generator=g) / layer.A.shape[1] ** 0.5)
                    layer.B.zero_()
            case.optimizer.state.clear()

    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=5e-3)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, opt, before_step=merge,
                healthy=lambda log: log[6].grads["l1.A"] == 0.0 and log[8].grads["l1.A"] > 0 and log[-1].loss < log[0].loss)
