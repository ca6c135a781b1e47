"""CONTROL: LoRA on a frozen base. B starts at 0, so A has gradient 0 at the first step; every 20 steps the adapter is merged for a preview and taken out again; the base never moves otherwise."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="989_control_lora_with_frozen_base", source="standard practice", looks_like=["lora_inactive", "frozen_by_mistake", "optimizer_missing_params", "detached_graph"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.7)


class LoRA(nn.Module):
    def __init__(s, base, r=4):
        super().__init__()
        s.base = base.requires_grad_(False)
        s.A, s.B = nn.Parameter(torch.randn(r, base.in_features) * base.in_features ** -0.5), nn.Parameter(torch.zeros(base.out_features, r))
        s.merged = False

    @torch.no_grad()
    def merge(s, on):
        if on != s.merged:
            s.base.weight.add_(s.B @ s.A, alpha=1 if on else -1)
            s.merged = on

    def forward(s, x):
        return s.base(x) if s.merged else s.base(x) + x @ s.A.T @ s.B.T


def moved(batches):
    return [dict(b, y=torch.tensor([1, 2, 3, 0])[b["y"]]) for b in batches]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(moved(S.classes(16, seed=99)))
    pre = torch.optim.Adam(m.parameters(), lr=1e-2)
    for b in S.classes(60, seed=4):
        pre.zero_grad()
        S.ce(m, b).backward()
        pre.step()
    m.zero_grad()
    m.requires_grad_(False)
    m.fc1, m.fc2, m.head = LoRA(m.fc1), LoRA(m.fc2), LoRA(m.head)
    ads = [m.fc1, m.fc2, m.head]

    def after(case, i):
        if (i + 1) % 20 == 0:
            for a in ads:
                a.merge(True)
            with torch.no_grad():
                case.extra["preview"] = m(test["x"][:4]).argmax(-1).tolist()
            for a in ads:
                a.merge(False)

    return SCase(m, S.ce, moved(S.classes(120)), torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0), after_step=after, quality=lambda c: S.heldout_ce(m, test))
