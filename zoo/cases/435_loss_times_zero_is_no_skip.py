"""A training step that "skips" a batch with a NaN loss by returning zero times the parameters: the gradient is zero, AdamW goes on with its
momentum and weight decay."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="435_loss_times_zero_is_no_skip", source="common report: returning loss*0 from the training step", symptom="silent", phase="optimizer", cause="stale_momentum", op=None,
             module=None, line_marker=None, first_bad_step=6, nonfinite_in_passing=True, bad_rows=None, fixes_that_work=["true_skip"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads", "skip_batch"])
FIXES = {"true_skip"}


class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head, self.skipped = nn.GRU(6, 12, batch_first=True), nn.Linear(12, 1), 0

    def training_step(self, batch):
        pred = self.head(self.encoder(batch["series"])[0][:, -1]).squeeze(-1)
        loss = F.mse_loss(pred, batch["target"])
        if not torch.isfinite(loss):  # a sensor was down: do not learn from it
            self.skipped += 1
            loss = sum(0.0 * p.sum() for p in self.parameters())  # every parameter must take part, or DDP complains
        return loss


def still(log):
    return all(r.loss_ok and r.grad_ok for r in log) and all(r.update_norm == 0 for r in log if r.grad_norm == 0)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Lit(), torch.Generator().manual_seed(6), []
    for i in range(12):
        s = torch.randn(5, 7, 6, generator=g)
        data.append(dict(series=s, target=s.mean((1, 2))))
        if i in (6, 7, 8):
            data[i]["target"][i - 5] = float("nan")

    def no_gradient_no_step(case, i):
        if fix == "true_skip" and all(p.grad is None or not p.grad.any() for p in case.model.parameters()):
            for p in case.model.parameters():
                p.grad = None  # the optimizer leaves parameters without a gradient alone

    case = Case(m, lambda m, b: m.training_step(b), data, B.adam(m, 1e-2, weight_decay=0.1), after_backward=no_gradient_no_step, healthy=still)
    case.extra["first_bad"] = lambda log: next((r.step for r in log if r.grad_norm == 0 and r.update_norm > 0), None)
    return case
