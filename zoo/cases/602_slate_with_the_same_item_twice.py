"""A determinantal point process scores slates of items. One logged slate shows the same item twice: its kernel is singular and
logdet gives -inf. Two micro-batches make a step."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="602_slate_with_the_same_item_twice", source="common report: log-determinant of a singular kernel",
             symptom="inf_loss", phase="loss", cause="log_zero", op="linalg_slogdet", op_also=["logdet", "log", "linalg_det"], module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[1], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class DPP(nn.Module):
    def __init__(s, n_items=30, d=8):
        super().__init__()
        s.item = nn.Embedding(n_items, d)
        s.quality = nn.Linear(d, 1)

    def kernel(s, ids):
        e = s.item(ids)
        q = torch.exp(0.5 * torch.tanh(s.quality(e)))
        phi = q * F.normalize(e, dim=-1)
        return phi @ phi.mT

    def forward(s, slate, catalogue):
        return s.kernel(slate), s.kernel(catalogue)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = DPP(), torch.Generator().manual_seed(4)

    def loss_fn(m, batch):
        chosen, ground = m(batch["slate"], batch["catalogue"])
        if fix == "eps":
            chosen = chosen + 1e-4 * torch.eye(chosen.shape[-1])
        up = torch.logdet(chosen)  # <-- origin
        norm = torch.logdet(ground + torch.eye(ground.shape[-1]))
        return (norm - up).mean()

    data = []
    for _ in range(12):
        catalogue = torch.stack([torch.randperm(30, generator=g)[:10] for _ in range(4)])
        data.append(dict(slate=catalogue[:, :4].clone(), catalogue=catalogue))
    data[7]["slate"][1, 3] = data[7]["slate"][1, 0]
    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=5e-3), accumulation=2)
