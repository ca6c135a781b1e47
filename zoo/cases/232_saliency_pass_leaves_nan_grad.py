"""Before step 5 a saliency plot calls backward on a validation image with dead pixels (NaN) and nobody clears .grad: the next
training step has a finite loss and adds its gradients to NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="232_saliency_pass_leaves_nan_grad", source="https://github.com/espnet/espnet/pull/3283",
             symptom="nan_grad", phase="state", cause="poisoned_state", op=None, module=None, line_marker=None, tensor_kind="grad", first_bad_step=5, bad_rows=None,
             fixes_that_work=["zero_grad", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"zero_grad"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU())
        s.classifier = nn.Linear(6, 4)

    def forward(s, x):
        return s.classifier(s.features(x).mean([2, 3]))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"], label_smoothing=0.1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(5)
    probe = torch.rand(1, 1, 8, 8, generator=g)
    probe[0, 0, 3, 3] = float("nan")

    def saliency(case, i):
        if i == 5:
            x = probe.clone().requires_grad_(True)
            case.model(x)[0, 2].backward()        # also fills every parameter's .grad
            if fix == "zero_grad":
                case.optimizer.zero_grad()

    data = [dict(x=torch.rand(6, 1, 8, 8, generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(9)]
    return Case(m, loss_fn, data, torch.optim.NAdam(m.parameters(), lr=2e-3), before_step=saliency)
