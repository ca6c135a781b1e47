"""CONTROL: AdamW with weight decay 0.1 on matrices (none on biases and norms), clip 0.5 that is active at most steps, dropout 0.2, bounded Tanh units;
validation in eval mode in between."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1286_control_clipped_with_strong_decay", source="standard practice", looks_like=["clip_throttles", "weight_decay_dominates", "train_mode_in_eval", "saturated_activation"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, val, test = S.Classifier(act=nn.Tanh, drop=0.2, norm=True), S.cat(S.classes(4, seed=5)), S.cat(S.classes(16, seed=99))
    groups = [{"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": 0.1}, {"params": [p for p in m.parameters() if p.dim() < 2], "weight_decay": 0.0}]

    def after(case, i):
        if i % 20 == 19:
            m.eval()
            with torch.no_grad():
                case.extra["val"] = float(S.ce(m, val))
            m.train()

    return SCase(m, S.ce, S.classes(80), torch.optim.AdamW(groups, lr=1e-2), clip_norm=0.5, after_step=after, quality=lambda c: S.heldout_ce(m, test))
