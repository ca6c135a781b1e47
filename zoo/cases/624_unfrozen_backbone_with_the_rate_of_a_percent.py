"""Fine-tuning in two phases: at step 5 the backbone is unfrozen and added to the optimizer with lr=3 (meant: 3e-3, the config was in units
of a thousandth). Everything is finite for a while and blows up."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="624_unfrozen_backbone_with_the_rate_of_a_percent", source="common report: add_param_group with a rate in the wrong units",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, module_also=["backbone"], line_marker=None, first_bad_step=5, bad_rows=None,
             fixes_that_work=["right_rate"], fixes_that_do_not=["skip_batch", "zero_nan_grads", "clip"])
FIXES = {"right_rate"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.backbone(x)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(13)
    m.backbone.requires_grad_(False)
    opt = torch.optim.SGD(m.head.parameters(), lr=0.02, momentum=0.9)

    def unfreeze(case, i):
        if i == 5:
            case.model.backbone.requires_grad_(True)
            case.optimizer.add_param_group({"params": list(case.model.backbone.parameters()), "lr": 3e-3 if fix == "right_rate" else 3.0})

    data = []
    for _ in range(14):
        x = torch.randn(16, 10, generator=g)
        data.append((x, 2 * x[:, 0] - x[:, 1] * x[:, 2]))

    def healthy(log):
        return all(r.loss_ok and r.grad_ok and r.loss < 5 * log[0].loss for r in log)

    return Case(m, lambda m, b: F.mse_loss(m(b[0]), b[1]), data, opt, before_step=unfreeze, healthy=healthy)
