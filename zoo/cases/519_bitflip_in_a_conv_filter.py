"""One exponent bit of one filter weight turns over between two steps."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="519_bitflip_in_a_conv_filter", source="https://arxiv.org/abs/2102.11245 (silent data corruption at scale)",
             symptom="nan_loss", phase="state", cause="transient_fault", op=None, module="stem", module_also=[None], line_marker=None, tensor="stem.weight", tensor_kind="parameter",
             first_bad_step=6, bad_rows=None, fixes_that_work=["restore_weight"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"restore_weight"}


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(c)

    def forward(self, x):
        return x + F.relu(self.bn(self.conv(x)))


class ResNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.layer1, self.layer2 = Res(8), Res(8)
        self.fc = nn.Linear(8, 6)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = ResNetish()

    def cosmic_ray(case, i):
        if i == 6 and fix != "restore_weight":
            with torch.no_grad():
                w = case.model.stem.weight.view(-1)
                w[100] = (w[100:101].view(torch.int32) ^ (1 << 30)).view(torch.float32)[0]

    data = [dict(pixel_values=torch.randn(6, 3, 10, 10), labels=torch.randint(0, 6, (6,))) for _ in range(10)]
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    return Case(net, lambda m, b: F.cross_entropy(m(b["pixel_values"]), b["labels"]), data, opt, before_step=cosmic_ray)
