"""CONTROL: validation keeps dropout on deliberately (ten passes, mean and spread as uncertainty); layer norm only, so no statistics are touched."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1183_control_monte_carlo_dropout", source="standard practice", looks_like=["train_mode_in_eval", "eval_mode_in_training"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.5)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, val, test = S.Classifier(h=48, drop=0.2), S.cat(S.classes(4, seed=5)), S.cat(S.classes(16, seed=99))
    m.bn = nn.LayerNorm(48)

    def uncertainty():
        m.eval()
        for d in m.modules():
            if isinstance(d, nn.Dropout):
                d.train()
        with torch.no_grad():
            p = torch.stack([torch.softmax(m(val["x"]), -1) for _ in range(10)])
        m.train()
        return float(p.mean(0).max(-1).values.mean()), float(p.std(0).mean())

    def after(case, i):
        if (i + 1) % 10 == 0:
            case.extra["mc"] = uncertainty()

    return SCase(m, S.ce, S.classes(80), torch.optim.Adam(m.parameters(), lr=5e-3), after_step=after, quality=lambda c: S.heldout_ce(m, test))
