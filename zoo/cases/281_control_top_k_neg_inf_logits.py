"""CONTROL: top-k filtering writes -inf into the logits before softmax; the sampled token is always among those kept."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="281_control_top_k_neg_inf_logits", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    logits = m(b["ids"])[:, :-1]
    kept = logits.topk(8, dim=-1).values[..., -1:]
    filtered = logits.masked_fill(logits < kept, float("-inf"))
    action = filtered.argmax(-1, keepdim=True)
    logp = F.log_softmax(filtered, -1).gather(-1, action)[..., 0]
    return -(logp * b["reward"][:, None]).mean() + 0.1 * F.cross_entropy(logits.flatten(0, 1), b["labels"][:, 1:].flatten())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = B.TinyLM(d=16, n=1), B.lm_data(12), torch.Generator().manual_seed(2)
    for b in data:
        b["reward"] = torch.rand(4, generator=g)
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
