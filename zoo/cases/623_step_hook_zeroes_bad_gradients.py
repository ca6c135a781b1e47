"""A guard in optimizer.register_step_pre_hook zeroes all gradients when one is not finite, and calls that a skipped step. AdamW's momentum
and decay move the weights anyway."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="623_step_hook_zeroes_bad_gradients", source="common report: skipping a step by zeroing the gradients",
             symptom="silent", phase="optimizer", cause="stale_momentum", op=None, module=None, line_marker=None, nonfinite_in_passing=True, first_bad_step=6, bad_rows=None,
             fixes_that_work=["true_skip", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"true_skip"}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(25, 10, padding_idx=0)
        self.rnn = nn.LSTM(10, 12, batch_first=True)
        self.out = nn.Linear(12, 4)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def loss_fn(m, b):
    per_token = F.cross_entropy(m(b["ids"]).flatten(0, 1), b["tags"].flatten(), reduction="none").view(b["ids"].shape)
    return (per_token * b["confidence"]).mean()


def moved(r):
    return not r.grad_ok and r.update_norm > 0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Tagger(), torch.Generator().manual_seed(24)
    opt = torch.optim.AdamW(m.parameters(), lr=2e-3, weight_decay=0.05)

    def guard(opt, args, kwargs):
        params = [p for group in opt.param_groups for p in group["params"] if p.grad is not None]
        if not all(bool(p.grad.isfinite().all()) for p in params):
            for p in params:
                if fix == "true_skip":
                    p.grad = None
                else:
                    p.grad.zero_()

    opt.register_step_pre_hook(guard)
    data = []
    for _ in range(10):
        ids = torch.randint(1, 25, (5, 7), generator=g)
        data.append(dict(ids=ids, tags=ids % 4, confidence=torch.rand(5, 7, generator=g)))
    data[6]["confidence"][2, 3] = float("nan")
    return Case(m, loss_fn, data, opt, healthy=lambda log: not any(moved(r) for r in log), extra={"first_bad": lambda log: next((r.step for r in log if moved(r)), None)})
