"""Dense graph attention without self loops: an atom with no bond has a row of -inf only."""
import torch
import torch.nn as nn
from protocol import Case

TRUTH = dict(id="511_graph_attention_isolated_atom", source="written for this set, after a kind of report often seen: nan for isolated nodes",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", module="gat1", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1, 2], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min"}


class DenseGAT(nn.Module):
    def __init__(self, fin, fout, fill):
        super().__init__()
        self.w = nn.Linear(fin, fout, bias=False)
        self.src = nn.Parameter(torch.randn(fout) * 0.3)
        self.dst = nn.Parameter(torch.randn(fout) * 0.3)
        self.fill = fill

    def forward(self, h, adj):
        z = self.w(h)
        e = nn.functional.leaky_relu((z @ self.src).unsqueeze(2) + (z @ self.dst).unsqueeze(1), 0.2)
        att = torch.softmax(e.masked_fill(adj == 0, self.fill), dim=-1)  # <-- origin
        return att @ z


class MolNet(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.gat1 = DenseGAT(5, 8, fill)
        self.gat2 = DenseGAT(8, 8, fill)
        self.readout = nn.Linear(8, 1)

    def forward(self, atoms, adj):
        h = torch.tanh(self.gat1(atoms, adj))
        return self.readout(self.gat2(h, adj).mean(1)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = MolNet(-1e9 if fix == "finfo_min" else float("-inf"))
    ring = torch.roll(torch.eye(7), 1, 0) + torch.roll(torch.eye(7), -1, 0)
    batches = []
    for step in range(8):
        adj = ring.repeat(4, 1, 1)
        if step == 4:
            for mol in (1, 2):
                adj[mol, 6, :] = 0
                adj[mol, :, 6] = 0
        batches.append({"atoms": torch.randn(4, 7, 5), "adj": adj, "y": torch.randn(4)})

    def loss_fn(model, b):
        return (model(b["atoms"], b["adj"]) - b["y"]).abs().mean()

    return Case(model, loss_fn, batches, torch.optim.Adam(model.parameters(), lr=1e-3))
