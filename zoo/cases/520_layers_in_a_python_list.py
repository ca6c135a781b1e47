"""The hidden layers are kept in a plain Python list, so parameters() does not know them and the optimizer never moves them."""
import torch
from torch import nn
from protocol import Case

TRUTH = dict(id="520_layers_in_a_python_list", source="written for this set, after a kind of report often seen: layers in a python list",
             symptom="silent", phase="optimizer", cause="no_trainable_grad", op=None, module="", module_also=[None], line_marker=None, first_bad_step=0, bad_rows=None,
             fixes_that_work=["module_list"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"module_list"}


class DeepSet(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.inp = nn.Linear(3, 16)
        hidden = [nn.Linear(16, 16) for _ in range(3)]
        self.hidden = nn.ModuleList(hidden) if fixed else hidden
        self.out = nn.Linear(16, 1)

    def forward(self, points):
        h = torch.relu(self.inp(points))
        for layer in self.hidden:
            h = torch.relu(layer(h)) + h
        return self.out(h.sum(1)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = DeepSet(fix == "module_list")
    start = [layer.weight.detach().clone() for layer in net.hidden]
    batches = []
    for _ in range(10):
        pts = torch.randn(8, 6, 3)
        batches.append({"points": pts, "target": pts.norm(dim=-1).max(1).values})
    moved = lambda log: all(not torch.equal(a, layer.weight) for a, layer in zip(start, net.hidden))
    return Case(net, lambda m, b: (m(b["points"]) - b["target"]).pow(2).mean(), batches, torch.optim.Adam(net.parameters(), lr=1e-3), healthy=moved)
