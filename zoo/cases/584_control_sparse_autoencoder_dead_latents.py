"""A wide sparse autoencoder: with a strongly negative bias many latents never fire and get exactly zero gradient. By design."""
import torch
from torch import nn
from protocol import Case

TRUTH = dict(id="584_control_sparse_autoencoder_dead_latents", source="https://transformer-circuits.pub/2023/monosemantic-features", symptom="none", phase="none", cause="none",
             op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


class SAE(nn.Module):
    def __init__(self, d=10, width=80):
        super().__init__()
        self.pre = nn.Parameter(torch.zeros(d))
        self.enc = nn.Linear(d, width)
        self.dec = nn.Linear(width, d, bias=False)
        nn.init.constant_(self.enc.bias, -0.8)

    def forward(self, act):
        f = torch.relu(self.enc(act - self.pre))
        return self.dec(f) + self.pre, f


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    sae = SAE()
    atoms = torch.randn(30, 10)
    acts = [(torch.rand(24, 30) * (torch.rand(24, 30) < 0.1)) @ atoms for _ in range(30)]

    def loss_fn(sae, act):
        recon, f = sae(act)
        return (recon - act).pow(2).sum(-1).mean() + 1e-2 * f.abs().sum(-1).mean()

    return Case(sae, loss_fn, acts, torch.optim.Adam(sae.parameters(), lr=3e-3))
