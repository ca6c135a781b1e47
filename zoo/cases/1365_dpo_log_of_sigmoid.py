"""DPO with -log(sigmoid(beta * margin)) spelled out on a tiny GPT-2: a pair the policy ranks far the wrong way gives
sigmoid = 0 and log(0)."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="1365_dpo_log_of_sigmoid", source="commonly reported; no link was looked up",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[1], fixes_that_work=["log_softmax", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"log_softmax", "eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.gpt2()

    def logp(m, ids):
        lg = m(input_ids=ids).logits[:, :-1]
        return F.log_softmax(lg, -1).gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)

    def loss_fn(m, b):
        margin = 0.5 * ((logp(m, b["chosen"]) - b["ref_w"]) - (logp(m, b["rejected"]) - b["ref_l"]))
        if fix == "log_softmax":
            return -F.logsigmoid(margin).mean()
        win = torch.sigmoid(margin)
        return -torch.log(win + 1e-12 if fix == "eps" else win).mean()  # <-- origin

    data = []
    for w, l in zip(B.lm_data(8), B.lm_data(8, seed=4)):
        data.append(dict(chosen=w["ids"], rejected=l["ids"], ref_w=torch.full((4,), -38.0), ref_l=torch.full((4,), -38.0)))
    data[5]["ref_w"][1], data[5]["ref_l"][1] = -3.0, -320.0       # a reference of another tokenizer
    return Case(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=1e-4))
