"""CONTROL: linear probe. The pretrained backbone is frozen, stays in eval mode (train() is overridden), runs under no_grad and is in no optimizer; only the probe learns."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="982_control_linear_probe", source="standard practice", looks_like=["frozen_by_mistake", "optimizer_missing_params", "eval_mode_in_training", "detached_graph"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.7)


class Probe(nn.Module):
    def __init__(s, backbone):
        super().__init__()
        s.backbone, s.probe = backbone.requires_grad_(False), nn.Linear(32, 3)

    def train(s, mode=True):
        super().train(mode)
        s.backbone.eval()
        return s

    def forward(s, x):
        with torch.no_grad():
            h = s.backbone.features(x)
        return s.probe(h)


def relabel(batches):
    return [dict(b, y=torch.tensor([1, 0, 2, 1])[b["y"]]) for b in batches]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    back = S.Classifier(norm=True, drop=0.1)
    pre = torch.optim.Adam(back.parameters(), lr=1e-2)
    for b in S.classes(80, seed=3):
        pre.zero_grad()
        S.ce(back, b).backward()
        pre.step()
    back.zero_grad()
    m, test = Probe(back), S.cat(relabel(S.classes(16, seed=99)))
    m.train()
    return SCase(m, S.ce, relabel(S.classes(100)), torch.optim.SGD(m.probe.parameters(), lr=0.1, momentum=0.9), quality=lambda c: S.heldout_ce(m, test))
