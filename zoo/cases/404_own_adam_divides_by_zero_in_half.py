"""A hand-written Adam over fp16 weights: embedding rows that never occurred have zero moments, and eps=1e-8 is zero in fp16."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="404_own_adam_divides_by_zero_in_half", source="https://github.com/pytorch/pytorch/issues/8860",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="div", op_also=["addcdiv"], module=None, module_also=["embed"], line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "fp32", "bf16", "fp32_state"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32", "bf16", "fp32_state"}


class PlainAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), eps=1e-8, state_dtype=None):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, state_dtype=state_dtype))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                dt = group["state_dtype"] or p.dtype
                if not st:
                    st["t"] = 0
                    st["m"], st["v"] = torch.zeros_like(p, dtype=dt), torch.zeros_like(p, dtype=dt)
                st["t"] += 1
                g = p.grad.to(dt)
                st["m"].mul_(b1).add_(g, alpha=1 - b1)
                st["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                lr = group["lr"] * (1 - b2 ** st["t"]) ** 0.5 / (1 - b1 ** st["t"])
                update = st["m"] / (st["v"].sqrt() + group["eps"])  # <-- origin
                p.sub_((lr * update).to(p.dtype))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(40, 12), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, ids):
        return self.out(torch.tanh(self.mix(self.embed(ids))))


def loss_fn(m, b):
    return 32 * F.cross_entropy(m(b["ids"]).float().flatten(0, 1), b["tags"].flatten())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Tagger().to({"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16))
    g = torch.Generator().manual_seed(2)
    data = [dict(ids=torch.randint(0, 24, (4, 6), generator=g), tags=torch.randint(0, 5, (4, 6), generator=g)) for _ in range(7)]
    opt = PlainAdam(m.parameters(), eps=1e-4 if fix == "eps" else 1e-8, state_dtype=torch.float32 if fix == "fp32_state" else None)
    return Case(m, loss_fn, data, opt)
