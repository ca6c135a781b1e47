"""From step 6 on the pretrained encoder is 'frozen' by zeroing its gradients after backward. AdamW still carries momentum and decays
weights, so the frozen encoder keeps walking away from its pretrained values."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="820_frozen_by_zeroing_its_gradients", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="optimizer", cause="stale_momentum", op=None, module="encoder", module_also=["encoder.fc1", "encoder.fc2"], line_marker=None,
             first_bad_step=6, bad_rows=None, fixes_that_work=["true_skip"], fixes_that_do_not=["clip", "lr_down", "no_decay"])
FIXES = {"true_skip", "no_decay"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.head = B.mlp(8, 32, 16), nn.Linear(16, 1)

    def forward(s, x):
        return s.head(torch.tanh(s.encoder(x)))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m = Net()
    frozen, moved = {}, []

    def weights(case):
        return torch.cat([p.detach().flatten().clone() for p in case.model.encoder.parameters()])

    def before(case, i):
        if i == 6:
            frozen["w"] = weights(case)
        elif i > 6:
            moved.append((i - 1, bool((weights(case) != frozen["w"]).any())))

    def after(case, i):
        if i >= 6:
            for p in case.model.encoder.parameters():
                if fix == "true_skip":
                    p.grad = None
                else:
                    p.grad.zero_()

    opt = torch.optim.AdamW(m.parameters(), lr=3e-3, weight_decay=0.0 if fix == "no_decay" else 0.05)
    return Case(m, loss_fn, B.xy(14), opt, before_step=before, after_backward=after, healthy=lambda log: not any(x for _, x in moved),
                extra={"first_bad": lambda log: next((i for i, x in moved if x), None)})
