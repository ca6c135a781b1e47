"""Entropic transport without the log domain: for one pair of clouds every entry of exp(-cost / eps) underflows and the scaling
divides by an exact zero."""
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="325_sinkhorn_kernel_underflow", source="common report: Sinkhorn iterations with a small eps",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", op_also=["reciprocal"], module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = B.mlp(2, 12, 2), torch.Generator().manual_seed(4)

    def transport(x, y):
        cost = (x[:, :, None] - y[:, None]).pow(2).sum(-1)
        kernel = torch.exp(-cost / 0.5)
        u = v = torch.ones(x.shape[:2])
        for _ in range(3):
            for_u = torch.einsum("nij,nj->ni", kernel, v)
            u = 0.2 / (for_u + 1e-12 if fix == "eps" else for_u)  # <-- origin
            for_v = torch.einsum("nij,ni->nj", kernel, u)
            v = 0.2 / (for_v + 1e-12 if fix == "eps" else for_v)
        return (u[:, :, None] * kernel * v[:, None] * cost).sum((1, 2))

    def loss_fn(m, b):
        return transport(m(b["x"]), b["y"]).mean()

    data = [dict(x=torch.randn(4, 5, 2, generator=g), y=0.5 * torch.randn(4, 5, 2, generator=g)) for _ in range(8)]
    data[5]["y"][2] += 30.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
