"""Group-relative advantages (r - mean) / std: for one prompt every sampled answer earned the same reward, 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="210_grpo_group_without_variance", source="https://github.com/NVIDIA-NeMo/RL/pull/4161",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin", first_bad_step=5, bad_rows=[1],
             fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "biased", "zero_nan_grads"])
FIXES = {"eps", "biased"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(V=24, d=16, n=1, T=12)

    def advantages(r):
        spread = r.std(1, keepdim=True, unbiased=fix != "biased")
        if fix == "eps":
            spread = spread + 1e-4
        return (r - r.mean(1, keepdim=True)) / spread  # <-- origin

    def loss_fn(m, b):
        n, k, t = b["ids"].shape
        ids = b["ids"].view(n * k, t)
        lp = F.log_softmax(m(ids)[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1).view(n, k)
        ratio = torch.exp(lp - lp.detach())
        return -(ratio * advantages(b["reward"])).mean() + 1e-3 * lp.pow(2).mean()

    g = torch.Generator().manual_seed(3)
    data = [dict(ids=torch.randint(0, 24, (3, 4, 8), generator=g), reward=torch.rand(3, 4, generator=g).round(decimals=2)) for _ in range(9)]
    data[5]["reward"][1] = 0.25                   # every answer got the format reward and nothing else
    return Case(m, loss_fn, data, B.adam(m, 1e-3), clip_norm=1.0)
