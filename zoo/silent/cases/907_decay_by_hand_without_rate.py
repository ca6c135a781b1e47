"""Decoupled weight decay written by hand, p *= 1 - wd, without the learning rate and on every parameter: a tenth of every weight and of every norm gain is gone after each step."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="907_decay_by_hand_without_rate", source="constructed", symptom="silent", phase="optimizer", cause="weight_decay_dominates", op=None, module="norm", bad_rows=None,
             module_also=["enc.norm1", "enc.norm2"], line_marker="# <-- origin", first_bad_step=0, knowable_at=6, tensors=["norm.weight", "enc.norm1.weight", "enc.norm2.weight"],
             static_visible=dict(source="yes: factor 1 - wd without lr, over m.parameters()", objects="no: wd is nowhere in the optimizer"),
             quality_limit=0.8, margin=1.6, named=dict(kind="shrinks", names=["norm.weight", "enc.norm1.weight", "enc.norm2.weight"]),
             fixes_that_work=["times_lr"], fixes_that_do_not=["clip", "lr_down", "longer"])
FIXES = {"times_lr"}
WD, LR = 0.1, 2e-3


class Encoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(4, 24)
        s.enc = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        s.norm, s.out = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(s, x):
        return s.out(s.norm(s.enc(s.inp(x.view(len(x), 3, 4)))).mean(1))


def signal(case, i, r):
    """gains of all norms under half of their start"""
    return all(float(p.detach().abs().mean()) < 0.5 for n, p in case.model.named_parameters() if "norm" in n and n.endswith("weight"))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Encoder(), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=LR, betas=(0.9, 0.98))

    def step(case, b, i):
        loss = S.ce(m, b)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for p in m.parameters():
                p.mul_(1 - WD * (LR if fix else 1))  # <-- origin
        opt.zero_grad()
        return loss

    return SCase(m, S.ce, S.classes(120), opt, step=step, quality=lambda c: S.heldout_ce(m, test))
