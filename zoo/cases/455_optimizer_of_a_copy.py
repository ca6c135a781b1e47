"""The model is wrapped (here: deep-copied into a wrapper) after the optimizer was built from the original: gradients arrive, the optimizer looks
at tensors nobody uses."""
import copy
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="455_optimizer_of_a_copy", source="common report: optimizer created before the model was re-wrapped", symptom="silent", phase="optimizer", cause="no_trainable_grad", op=None,
             module=None, module_also=["", "net", "net.fc1", "net.fc2"], line_marker=None, first_bad_step=0, bad_rows=None, fixes_that_work=["rebuild_optimizer"],
             fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"rebuild_optimizer"}


class Wrapped(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = copy.deepcopy(net)

    def forward(self, **batch):
        return {"loss": F.mse_loss(self.net(batch["x"]), batch["y"])}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = B.mlp(8, 16, 1)
    opt = B.adam(net, 1e-2)
    m = Wrapped(net)
    if fix == "rebuild_optimizer":
        opt = B.adam(m, 1e-2)
    case = Case(m, lambda m, b: m(**b)["loss"], B.xy(8), opt)
    case.healthy = lambda log: all(r.loss_ok and r.grad_ok for r in log) and all(r.update_norm > 0 for r in log)
    return case
