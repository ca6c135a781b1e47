"""CONTROL: fresh LoRA: B is zero, so A gets a gradient of exactly 0 at step 0 and learns from step 1 on."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1405_control_lora_starts_at_zero", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="https://arxiv.org/abs/2106.09685")


class Adapter(nn.Module):
    def __init__(s, base, r=3):
        super().__init__()
        s.base = base.requires_grad_(False)
        s.down, s.up = nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(s.up.weight)

    def forward(s, x):
        return s.base(x) + 2.0 * s.up(s.down(x))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m = B.mlp(8, 24, 1)
    m.fc1, m.fc2 = Adapter(m.fc1), Adapter(m.fc2)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
    return Case(m, loss_fn, B.xy(14), opt, healthy=lambda log: log[0].grads["fc1.down.weight"] == 0 and log[-1].grads["fc1.down.weight"] > 0)
