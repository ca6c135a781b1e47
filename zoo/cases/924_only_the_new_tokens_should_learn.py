"""Four tokens are added to a vocabulary and a hook zeroes the gradient of all the old rows, so that only the new ones learn. AdamW's
weight decay does not look at gradients: the old embeddings shrink with every step."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="924_only_the_new_tokens_should_learn", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="optimizer", cause="stale_momentum", op=None, module="embed", line_marker=None, tensor="embed.weight",
             first_bad_step=0, bad_rows=None, fixes_that_work=["no_decay", "true_skip"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"no_decay", "true_skip"}


def make(seed=0, fix=None):
    m = B.TinyLM()
    m.requires_grad_(False)
    m.embed.weight.requires_grad_(True)
    mask = (torch.arange(32) >= 28).float()[:, None]
    m.embed.weight.register_hook(lambda g: g * mask)
    old = m.embed.weight.detach()[:28].clone()

    def healthy(log):
        return float((m.embed.weight.detach()[:28] - old).abs().max()) < 1e-7

    opt = torch.optim.AdamW([m.embed.weight], lr=1e-2, weight_decay=0.0 if fix == "no_decay" else 0.1)
    if fix == "true_skip":
        @torch.no_grad()
        def put_back(*_):
            m.embed.weight[:28] = old

        opt.register_step_post_hook(put_back)
    return Case(m, B.lm_loss, B.lm_data(14), opt, healthy=healthy)
