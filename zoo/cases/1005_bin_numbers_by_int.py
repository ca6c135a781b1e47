"""An encoder's output is cut into levels with .long() and looked at as a number again: integers have no gradient and the encoder never learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1005_bin_numbers_by_int", source="common report: casting to int breaks the graph", symptom="silent", phase="backward", cause="no_trainable_grad", op=None,
             module="encoder", line_marker=None, first_bad_step=0, bad_rows=None, fixes_that_work=["straight_through"],
             fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"straight_through"}


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.encoder, self.decoder, self.fix = nn.Linear(8, 6), nn.Linear(6, 1), fix

    def forward(self, x):
        level = torch.sigmoid(self.encoder(x)) * 8
        whole = level.long().float()
        if self.fix == "straight_through":
            whole = level + (whole - level).detach()
        return self.decoder(whole / 8)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net(fix)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), B.xy(12), B.adam(m, 3e-3), healthy=lambda log: all(r.grads["encoder.weight"] for r in log))
