"""Two fifths of the labels are random: the loss hovers near log(classes) and hardly falls. That is what the data allow."""
import torch
from torch import nn
from protocol import Case

TRUTH = dict(id="581_control_forty_percent_wrong_labels", source="https://arxiv.org/abs/1611.03530", symptom="none", phase="none", cause="none",
             op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, teacher = Net(), torch.randn(12, 4)
    batches = []
    for _ in range(30):
        x = torch.randn(16, 12)
        y = (x @ teacher).argmax(1)
        wrong = torch.rand(16) < 0.4
        y[wrong] = torch.randint(0, 4, (int(wrong.sum()),))
        batches.append({"input": x, "label": y})
    ce = nn.CrossEntropyLoss(label_smoothing=0.1)
    return Case(net, lambda m, b: ce(m(b["input"]), b["label"]), batches, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4))
