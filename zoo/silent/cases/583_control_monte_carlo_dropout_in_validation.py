"""CONTROL: the uncertainty report draws eight passes with dropout on, under no_grad, batch norm in eval mode; the accuracy report is in eval mode. train() before the next step."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="583_control_monte_carlo_dropout_in_validation", source="standard practice (Monte Carlo dropout)", looks_like=["train_mode_in_eval", "eval_mode_in_training"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, val, test = S.Classifier(h=48, drop=0.2, norm=True), S.cat(S.classes(4, seed=5)), S.cat(S.classes(16, seed=99))

    @torch.no_grad()
    def report():
        m.eval()
        acc = float((m(val["x"]).argmax(-1) == val["y"]).float().mean())
        m.drop.train()                             # dropout alone
        p = torch.stack([torch.softmax(m(val["x"]), -1) for _ in range(8)])
        m.train()
        return acc, float(p.std(0).mean())

    def after(case, i):
        if i % 10 == 9:
            case.extra.setdefault("report", []).append(report())

    return SCase(m, S.ce, S.classes(80), torch.optim.Adam(m.parameters(), lr=5e-3), after_step=after, quality=lambda c: S.heldout_ce(m, test))
