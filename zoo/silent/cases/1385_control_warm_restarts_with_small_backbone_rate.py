"""CONTROL: cosine annealing with warm restarts: the rate falls to 0 three times and comes back; the pretrained encoder has a thousandth of the head's rate, on purpose, and moves little; norm gains
and biases are in a group without decay."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1385_control_warm_restarts_with_small_backbone_rate", source="standard practice", looks_like=["lr_zero", "wrong_param_group_lr", "frozen_by_mistake"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.2)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(norm=True), S.cat(S.classes(16, seed=99, sep=3.0))
    pre = torch.optim.Adam(m.parameters(), lr=1e-2)
    for b in S.classes(80, seed=1, sep=3.0):       # pretraining on the same inputs with coarser labels
        pre.zero_grad()
        S.ce(m, {"x": b["x"], "y": b["y"] // 2}).backward()
        pre.step()
    m.zero_grad()
    m.head = torch.nn.Linear(32, 4)
    body = [(n, p) for n, p in m.named_parameters() if not n.startswith("head")]
    opt = torch.optim.AdamW([{"params": [p for n, p in body if p.dim() > 1], "lr": 1e-5, "weight_decay": 0.01},
                             {"params": [p for n, p in body if p.dim() == 1], "lr": 1e-5, "weight_decay": 0.0},
                             {"params": m.head.parameters(), "lr": 1e-2, "weight_decay": 0.01}])
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=30, eta_min=0.0)
    return SCase(m, S.ce, S.classes(120, sep=3.0), opt, scheduler=sched, quality=lambda c: S.heldout_err(m, test))
