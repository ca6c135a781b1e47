"""The linear scaling rule without warm-up: momentum SGD for a batch of 8192 gives a rate of 3.2, and the little network blows up within a few steps."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2040_linear_scaling_rule_for_a_batch_of_eight_thousand", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="optimizer", cause="lr_divergence", op=None, module=None, module_also=["", "conv1", "conv2", "fc"], line_marker=None,
             first_bad_step=27, latent_from=1, bad_rows=None, fixes_that_work=["lr_down", "warmup"], fixes_that_do_not=["skip_batch"])
FIXES = {"lr_down", "warmup"}


class Cnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1, s.conv2, s.fc = nn.Conv2d(1, 12, 3), nn.Conv2d(12, 12, 3), nn.Linear(12, 1)

    def forward(s, x):
        return s.fc(torch.relu(s.conv2(torch.relu(s.conv1(x)))).mean((2, 3))).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Cnn()
    g = torch.Generator().manual_seed(75)
    data = [dict(x=torch.rand(16, 1, 9, 9, generator=g) * 3, y=2 * torch.randn(16, generator=g)) for _ in range(30)]

    def warm(case, i):
        if fix == "warmup":
            for group in case.optimizer.param_groups:
                group["lr"] = 0.01 * min(1.0, (i + 1) / 20)

    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.sgd(m, 0.01 if fix == "lr_down" else 3.2, momentum=0.9), before_step=warm)
