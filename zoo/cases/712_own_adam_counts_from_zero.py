"""A home-made Adam for the embedding group raises its step counter after the update instead of before: the bias correction of the first
step is 1 - beta ** 0 = 0, and m / 0 is written into the weights."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="712_own_adam_counts_from_zero", source="common report: hand-written Adam gives nan at the first step (bias correction with t = 0)",
             symptom="nan_param", phase="optimizer", cause="zero_division", op="div", module="user", module_also=["item", "bias", "", None], line_marker="# <-- origin", first_bad_step=0, bad_rows=None,
             fixes_that_work=["eps", "count_from_one"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "count_from_one"}


class OwnAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, fix=None):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.fix = fix

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["v"] = (1 if self.fix == "count_from_one" else 0), torch.zeros_like(p), torch.zeros_like(p)
                s["m"].lerp_(p.grad, 1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                tiny = 1e-3 if self.fix == "eps" else 0.0
                m_hat = s["m"] / (1 - b1 ** s["t"] + tiny)  # <-- origin
                v_hat = s["v"] / (1 - b2 ** s["t"] + tiny)
                p.sub_(group["lr"] * m_hat / (v_hat.sqrt() + group["eps"]))
                s["t"] += 1


class MF(nn.Module):
    def __init__(self, users=20, items=15, d=6):
        super().__init__()
        self.user, self.item, self.bias = nn.Embedding(users, d), nn.Embedding(items, d), nn.Embedding(items, 1)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.bias(i).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = MF(), torch.Generator().manual_seed(82)
    data = [(torch.randint(0, 20, (10,), generator=g), torch.randint(0, 15, (10,), generator=g), torch.rand(10, generator=g).round()) for _ in range(8)]
    return Case(m, lambda m, b: F.binary_cross_entropy_with_logits(m(b[0], b[1]), b[2]), data, OwnAdam(m.parameters(), lr=1e-2, fix=fix))
