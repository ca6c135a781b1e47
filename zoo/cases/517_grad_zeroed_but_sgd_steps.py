"""`if not finite: p.grad.zero_()` and then optimizer.step() all the same: SGD with momentum and decay keeps moving on the batch that was to be skipped."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="517_grad_zeroed_but_sgd_steps", source="written for this set, after a kind of report often seen: grad zeroed but sgd steps",
             symptom="silent", phase="optimizer", cause="stale_momentum", op=None, module=None, line_marker=None, first_bad_step=5, bad_rows=None, nonfinite_in_passing=True,
             fixes_that_work=["true_skip", "skip_batch"], fixes_that_do_not=["clip", "zero_nan_grads"])
FIXES = {"true_skip"}


def moved_without_gradient(r):
    return not r.loss_ok and r.update_norm > 0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5))

    def drop_bad(case, i):
        grads = [p.grad for p in case.model.parameters()]
        if not all(g.isfinite().all() for g in grads):
            for p in case.model.parameters():
                if fix == "true_skip":
                    p.grad = None
                else:
                    p.grad.zero_()

    batches = [(torch.randn(8, 1, 6, 6), torch.randint(0, 5, (8,))) for _ in range(9)]
    batches[5][0][1, 0, 2, 2] = float("inf")
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    return Case(net, lambda m, b: F.cross_entropy(m(b[0]), b[1]), batches, opt, after_backward=drop_bad,
                healthy=lambda log: not any(moved_without_gradient(r) for r in log),
                extra={"first_bad": lambda log: next((r.step for r in log if moved_without_gradient(r)), None)})
