"""CONTROL: a pretrained backbone with batch norm is frozen and stays in eval mode, a new head is the only thing in the optimizer."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1184_control_frozen_backbone_new_head", source="standard practice", looks_like=["frozen_by_mistake", "optimizer_missing_params", "eval_mode_in_training", "wrong_param_group_lr"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)


class Probe(nn.Module):
    def __init__(s, backbone):
        super().__init__()
        s.backbone, s.head = backbone.requires_grad_(False), nn.Linear(32, 4)

    def train(s, mode=True):
        super().train(mode)
        s.backbone.eval()
        return s

    def forward(s, x):
        with torch.no_grad():
            h = s.backbone.features(x)
        return s.head(h)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    old, test = S.Classifier(norm=True), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(old.parameters(), lr=1e-2)
    for b in S.classes(60, seed=1):
        opt.zero_grad()
        S.ce(old, b).backward()
        opt.step()
    old.zero_grad()
    m = Probe(old)
    return SCase(m, S.ce, S.classes(60), torch.optim.Adam(m.head.parameters(), lr=1e-2), quality=lambda c: S.heldout_ce(m, test))
