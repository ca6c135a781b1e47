"""Speaker verification: the loss holds the within-speaker variance of the embeddings down; one speaker of the batch said only one
sentence and the unbiased variance of a single embedding is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="808_spread_of_a_speaker_heard_once", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="loss", cause="empty_reduction", op="var", op_also=["var_mean", "std"], module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[5], fixes_that_work=["biased", "guard", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"biased", "guard"}


class Speaker(nn.Module):
    def __init__(s):
        super().__init__()
        s.tdnn, s.proj = nn.Conv1d(8, 16, 3, padding=1), nn.Linear(16, 8)

    def forward(s, x):
        return s.proj(F.leaky_relu(s.tdnn(x)).mean(-1))


def make(seed=0, fix=None):
    m = Speaker()

    def loss_fn(m, b):
        z, terms, centres = m(b["x"]), [], []
        for k in b["speaker"].unique():
            own = z[b["speaker"] == k]
            centres.append(own.mean(0))
            if fix == "guard" and len(own) < 2:
                continue
            terms.append(own.var(0, unbiased=fix != "biased").mean())  # <-- origin
        c = torch.stack(centres)
        return torch.stack(terms).mean() + F.cross_entropy(-torch.cdist(z, c), torch.unique(b["speaker"], return_inverse=True)[1])

    g = torch.Generator().manual_seed(88)
    data = [dict(x=torch.randn(6, 8, 20, generator=g), speaker=torch.tensor([0, 0, 1, 1, 2, 2])[torch.randperm(6, generator=g)]) for _ in range(11)]
    data[7]["speaker"] = torch.tensor([4, 1, 1, 4, 4, 7])
    return Case(m, loss_fn, data, B.adam(m))
