"""A reward model under bf16 autocast: the sigmoid of 8 rounds to exactly 1 in bf16 and log(1 - p) is -inf."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2039_reward_model_is_certain_in_bf16", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[0], fixes_that_work=["clamp", "eps", "fp32", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp", "eps"}


class Reward(nn.Module):
    def __init__(s):
        super().__init__()
        s.lm, s.score = B.TinyLM(), nn.Linear(32 + 1, 1)
        with torch.no_grad():
            s.score.weight[0, 32] = 1.0

    def forward(s, ids, length):
        h = s.lm.hidden(ids)[:, -1]
        return torch.sigmoid(s.score(torch.cat([h, length[:, None].to(h.dtype)], -1))).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Reward()

    def loss_fn(m, b):
        p = m(b["ids"], b["length"])
        q = 1 - p
        if fix == "clamp":
            p, q = p.clamp(min=1e-6), q.clamp(min=1e-6)
        if fix == "eps":
            p, q = p + 1e-6, q + 1e-6
        return -(b["y"] * p.log() + (1 - b["y"]) * q.log()).mean()  # <-- origin

    g = torch.Generator().manual_seed(73)
    data = [dict(ids=b["ids"], length=torch.randn(4, generator=g), y=torch.randint(0, 2, (4,), generator=g).float()) for b in B.lm_data(8)]
    data[5]["length"][0], data[5]["y"][0] = 9.0, 0.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3), autocast=torch.bfloat16)
