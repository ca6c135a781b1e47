"""ORPO's odds need log(1 - exp(mean log p)); an answer cut away by max_length has mean log p 0, that is p = 1, and log1p(-1) is -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2013_orpo_odds_of_an_answer_without_tokens", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log1p", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["clamp", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM()

    def mean_logp(m, ids, keep):
        lp = torch.log_softmax(m(ids)[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        return (lp * keep[:, 1:]).sum(-1) / keep[:, 1:].sum(-1).clamp(min=1)

    def loss_fn(m, b):
        good, poor = mean_logp(m, b["good"], b["keep_good"]), mean_logp(m, b["poor"], b["keep_poor"])
        if fix == "clamp":
            good, poor = good.clamp(max=-1e-4), poor.clamp(max=-1e-4)
        odds = (good - poor) - (torch.log1p(-good.exp()) - torch.log1p(-poor.exp()))  # <-- origin
        return -good.mean() - 0.5 * F.logsigmoid(odds).mean()

    a, r = B.lm_data(10, seed=1), B.lm_data(10, seed=2)
    data = []
    for k in range(10):
        keep = torch.zeros(4, 12)
        keep[:, 5:] = 1
        data.append(dict(good=a[k]["ids"], keep_good=keep.clone(), poor=r[k]["ids"], keep_poor=keep.clone()))
    data[6]["keep_poor"][1] = 0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
