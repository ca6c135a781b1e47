"""Two-stage fine-tuning: the optimizer was built from filter(requires_grad) while the backbone was frozen. In stage two the backbone
is unfrozen and gets gradients, but no optimizer ever steps it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="823_unfrozen_but_not_in_the_optimizer", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="optimizer", cause="no_trainable_grad", op=None, module="backbone", module_also=["backbone.conv1", "backbone.conv2"], line_marker=None,
             first_bad_step=5, bad_rows=None, fixes_that_work=["add_param_group"], fixes_that_do_not=["clip", "lr_down", "lr_up"])
FIXES = {"add_param_group", "lr_up"}


class Backbone(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1, s.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)

    def forward(s, x):
        return F.relu(s.conv2(F.relu(s.conv1(x)))).mean([2, 3])


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.backbone, s.classifier = Backbone(), nn.Linear(16, 5)

    def forward(s, x):
        return s.classifier(s.backbone(x))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(23)
    m.backbone.requires_grad_(False)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=3e-2 if fix == "lr_up" else 3e-3)
    start, moved = m.backbone.conv1.weight.detach().clone(), []

    def before(case, i):
        if i == 5:
            case.model.backbone.requires_grad_(True)
            if fix == "add_param_group":
                case.optimizer.add_param_group({"params": list(case.model.backbone.parameters()), "lr": 3e-4})
        moved.append(bool((case.model.backbone.conv1.weight.detach() != start).any()))

    data = [dict(x=torch.randn(6, 3, 8, 8, generator=g), y=torch.randint(0, 5, (6,), generator=g)) for _ in range(14)]
    return Case(m, loss_fn, data, opt, before_step=before, healthy=lambda log: moved[-1],
                extra={"first_bad": lambda log: next((r.step for r in log if r.grads["backbone.conv1.weight"]), None)})
