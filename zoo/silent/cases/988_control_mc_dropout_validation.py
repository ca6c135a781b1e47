"""CONTROL: uncertainty by Monte Carlo dropout. In validation the dropout layers are in train mode on purpose, batch norm is in eval mode and no gradient is kept; train() afterwards."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="988_control_mc_dropout_validation", source="standard practice", looks_like=["train_mode_in_eval", "eval_mode_in_training"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.7)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, val, test = S.Classifier(drop=0.2, norm=True), S.cat(S.classes(4, seed=5)), S.cat(S.classes(16, seed=99))

    @torch.no_grad()
    def predict_mc(x, n=8):
        m.eval()
        for d in m.modules():
            if isinstance(d, nn.Dropout):
                d.train()
        p = torch.stack([m(x).softmax(-1) for _ in range(n)])
        m.train()
        return p.mean(0), p.var(0).sum(-1)

    def after(case, i):
        if (i + 1) % 15 == 0:
            p, u = predict_mc(val["x"])
            case.extra.setdefault("val", []).append((float(F.nll_loss(p.clamp_min(1e-9).log(), val["y"])), float(u.mean())))

    return SCase(m, S.ce, S.classes(105), torch.optim.Adam(m.parameters(), lr=5e-3), after_step=after, quality=lambda c: S.heldout_ce(m, test))
