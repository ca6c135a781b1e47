"""Video features extracted once and stored as float16: two frames of one clip had activations above 65504 and came back as inf. The
batch is a nested dictionary with lengths; the model normalises first, which makes NaN of it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="704_features_were_stored_in_half", source="common report: loss nan, inf in features cached with .half()",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None, first_bad_step=6, bad_rows=[2],
             fixes_that_work=["skip_batch", "drop_rows", "nan_to_num_input"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"nan_to_num_input"}


class Localiser(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.norm, self.gru, self.score = nn.LayerNorm(d), nn.GRU(d, 10, batch_first=True), nn.Linear(10, 2)

    def forward(self, video):
        h, _ = self.gru(self.norm(video["feats"]))
        mask = torch.arange(h.shape[1]) < video["len"][:, None]
        return self.score((h * mask[..., None]).sum(1) / video["len"][:, None])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Localiser(), torch.Generator().manual_seed(74)
    data = []
    for i in range(9):
        feats = torch.randn(5, 7, 12, generator=g) * 30
        if i == 6:
            feats[2, 1:3, 4] = 7.1e4
        feats = feats.half().float()
        if fix == "nan_to_num_input":
            feats = feats.nan_to_num(posinf=65504.0)
        data.append({"video": {"feats": feats, "len": torch.randint(4, 8, (5,), generator=g)}, "span": torch.rand(5, 2, generator=g)})
    return Case(m, lambda m, b: F.smooth_l1_loss(m(b["video"]), b["span"]), data, torch.optim.AdamW(m.parameters(), lr=1e-3))
