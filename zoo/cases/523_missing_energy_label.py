"""QM9-like table read with pandas: two molecules have no measured gap and the column holds NaN."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="523_missing_energy_label", source="written for this set, after a kind of report often seen: nan loss because of missing values in the csv", symptom="nan_loss",
             phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="gap", first_bad_step=2, bad_rows=[0, 4],
             fixes_that_work=["skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


class Readout(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 24))
        self.rho = nn.ModuleDict({"energy": nn.Linear(24, 1), "gap": nn.Linear(24, 1)})

    def forward(self, atoms):
        h = self.phi(atoms).sum(1)
        return {k: f(h).squeeze(-1) for k, f in self.rho.items()}


def multitask(net, mol):
    out = net(mol["atoms"])
    return sum(nn.functional.l1_loss(out[k], mol[k]) for k in ("energy", "gap"))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = Readout()
    mols = [{"atoms": torch.randn(6, 5, 6), "energy": torch.randn(6), "gap": torch.rand(6)} for _ in range(7)]
    mols[2]["gap"][[0, 4]] = float("nan")
    return Case(net, multitask, mols, torch.optim.Adam(net.parameters(), lr=1e-3), clip_norm=10.0)
