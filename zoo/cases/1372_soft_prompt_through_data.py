"""Prompt tuning on a frozen tiny GPT-2: the learned prompt is put in front of the embeddings as .data, so it is a constant;
only the small output scale learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="1372_soft_prompt_through_data", source="commonly reported; no link was looked up",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, module="prompt", line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["keep_tensor"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"keep_tensor"}


class Prompt(nn.Module):
    keep = False

    def __init__(s, n, d):
        super().__init__()
        s.table = nn.Parameter(torch.randn(n, d) * 0.1)

    def forward(s, k):
        return (s.table if s.keep else s.table.data).expand(k, -1, -1)


class Tuned(nn.Module):
    def __init__(s):
        super().__init__()
        s.lm, s.prompt, s.scale = H.gpt2().requires_grad_(False), Prompt(4, 16), nn.Linear(32, 32)

    def forward(s, ids):
        e = s.lm.get_input_embeddings()(ids)
        return s.scale(s.lm(inputs_embeds=torch.cat([s.prompt(len(ids)), e], 1)).logits[:, 4:])


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"])[:, :-1].flatten(0, 1), b["ids"][:, 1:].flatten())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Tuned()
    m.prompt.keep = bool(fix)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
    return Case(m, loss_fn, B.lm_data(8), opt, healthy=lambda log: all(r.loss_ok and r.grads["prompt.table"] for r in log))
