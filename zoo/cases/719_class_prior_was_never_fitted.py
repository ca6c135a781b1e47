"""Logit adjustment for long-tailed classes: the buffer of log priors is allocated with torch.empty and filled by fit(), which the script
calls only for the other data set. The adjustment is switched on after the warm-up at step 4 and reads what was never written."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="719_class_prior_was_never_fitted", source="common report: buffers from torch.empty, nan at some runs only",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="criterion", line_marker=None, tensor="criterion.log_prior", tensor_kind="buffer", first_bad_step=4, bad_rows=None,
             fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"init"}


class LogitAdjusted(nn.Module):
    def __init__(self, k, tau=1.0):
        super().__init__()
        self.tau, self.active = tau, False
        self.register_buffer("log_prior", torch.empty(k))
        self.log_prior.fill_(float("nan"))  # what the allocator happened to leave there, made the same for every run

    def fit(self, counts):
        self.log_prior.copy_((counts / counts.sum()).log())

    def forward(self, logits, y):
        if self.active:
            logits = logits + self.tau * self.log_prior
        return F.cross_entropy(logits, y)


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 6))
        self.criterion = LogitAdjusted(6)

    def forward(self, img, y):
        return self.criterion(self.net(img), y)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Task(), torch.Generator().manual_seed(89)
    if fix == "init":
        m.criterion.fit(torch.tensor([50.0, 20, 10, 5, 2, 1]))

    def before_step(case, i):
        m.criterion.active = i >= 4

    data = [(torch.randn(8, 1, 6, 6, generator=g), torch.randint(0, 6, (8,), generator=g)) for _ in range(9)]
    return Case(m, lambda m, b: m(*b), data, torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9), before_step=before_step)
