"""Scale-invariant SDR projects on the target; a clip in which the target speaker says nothing has energy 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2004_si_sdr_of_a_clip_without_speech", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[0], fixes_that_work=["eps", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class ConvTas(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.sep, s.dec = nn.Conv1d(1, 16, 16, 8), nn.Conv1d(16, 16, 3, padding=1), nn.ConvTranspose1d(16, 1, 16, 8)

    def forward(s, mix):
        h = torch.relu(s.enc(mix[:, None]))
        return s.dec(h * torch.sigmoid(s.sep(h)))[:, 0]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = ConvTas()

    def loss_fn(m, b):
        est, ref = m(b["mix"]), b["clean"]
        est = est - est.mean(-1, keepdim=True)
        energy = ref.pow(2).sum(-1, keepdim=True) + (1e-8 if fix == "eps" else 0.0)
        alpha = (est * ref).sum(-1, keepdim=True) / energy  # <-- origin
        target = alpha * ref
        noise = est - target
        ratio = (target.pow(2).sum(-1) + 1e-8) / (noise.pow(2).sum(-1) + 1e-8)
        return -10 * torch.log10(ratio).mean()

    g = torch.Generator().manual_seed(3)
    data = []
    for k in range(8):
        clean = torch.sin(torch.rand(5, 1, generator=g) * torch.arange(264) * 0.6)
        if k == 3:
            clean[0] = 0
        data.append(dict(mix=clean + 0.3 * torch.randn(5, 264, generator=g), clean=clean))
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
