"""GRPO with mask_truncated_completions: every completion of one batch ran into the length limit, the token mask is empty and
the loss is divided by its sum."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="1366_grpo_all_completions_truncated", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=None, fixes_that_work=["eps", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = H.llama(), torch.Generator().manual_seed(6)

    def loss_fn(m, b):
        lg = m(input_ids=b["ids"]).logits[:, :-1]
        lp = F.log_softmax(lg, -1).gather(-1, b["ids"][:, 1:, None]).squeeze(-1)
        mask = b["mask"][:, 1:].float()
        per_token = -torch.exp(lp - lp.detach()) * b["adv"][:, None]
        tokens = mask.sum()
        return (per_token * mask).sum() / (tokens.clamp_min(1.0) if fix else tokens)  # <-- origin

    data = []
    for b in B.lm_data(9):
        mask = torch.ones(4, 12, dtype=torch.bool)
        mask[:, :4] = False
        data.append(dict(ids=b["ids"], mask=mask, adv=torch.randn(4, generator=g)))
    data[3]["mask"][2] = False
    data[6]["mask"][:] = False
    return Case(m, loss_fn, data, B.adam(m))
