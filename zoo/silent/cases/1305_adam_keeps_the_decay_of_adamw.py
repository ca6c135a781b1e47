"""A small language model; AdamW(weight_decay=0.1) was replaced by Adam with the same numbers. In Adam the decay is added to the gradient and divided by its size like the rest:
where the loss pulls with less than a tenth of the weight the full step goes towards zero. Weights and gains shrink until nothing can be said any more."""
import torch
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1305_adam_keeps_the_decay_of_adamw", source="constructed; Loshchilov & Hutter, Decoupled Weight Decay Regularization", symptom="silent", phase="optimizer",
             cause="weight_decay_dominates", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="hint: Adam with weight_decay=0.1", objects="yes: weight_decay of a coupled optimizer, norm gains in the same group"),
             named=dict(kind="shrinks", names=["norm.weight", "layers.0.norm1.weight"]),
             quality_limit=0.5, margin=2.0, fixes_that_work=["adamw", "small_decay"], fixes_that_do_not=["lr_down", "clip", "longer"])
FIXES = {"adamw", "small_decay"}


def signal(case, i, r):
    """the decay term is larger than the loss gradient for most parameters"""
    o = case.optimizer
    if not r or not r.stepped or isinstance(o, torch.optim.AdamW):
        return False
    wd, w = o.param_groups[0]["weight_decay"], dict(case.model.named_parameters())
    return sum(wd * float(p.detach().norm()) > (r.grads[n] or 0.0) for n, p in w.items()) > len(w) / 2


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = B.TinyLM(), S.cat(B.lm_data(16, seed=9))
    kind = torch.optim.AdamW if fix == "adamw" else torch.optim.Adam
    opt = kind(m.parameters(), lr=3e-3, weight_decay=1e-4 if fix == "small_decay" else 0.1)  # <-- origin
    return SCase(m, B.lm_loss, B.lm_data(150), opt, quality=lambda c: S.in_eval(m, lambda: B.lm_loss(m, test)))
