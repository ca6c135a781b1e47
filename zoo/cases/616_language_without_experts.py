"""A mixture of experts in which every language may use its own experts only: the router masks the others with -inf. The id of an unknown
language points at a table row without any expert."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="616_language_without_experts", source="common report: router probabilities NaN when every expert is masked",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", module="layers.0.router", line_marker="# <-- origin", first_bad_step=6, bad_rows=[3],
             fixes_that_work=["finfo_min", "guard", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min", "guard"}


class Router(nn.Module):
    def __init__(self, d, experts, languages, fix):
        super().__init__()
        self.proj, self.fix = nn.Linear(d, experts), fix
        table = torch.zeros(languages, experts, dtype=torch.bool)
        for i in range(languages - 1):  # the last one stands for "unknown"
            table[i, [i % experts, (i + 1) % experts]] = True
        self.register_buffer("allowed", table)

    def forward(self, x, lang):
        ok = self.allowed[lang][:, None]
        if self.fix == "guard":
            ok = ok | ~ok.any(-1, keepdim=True)
        fill = torch.finfo(x.dtype).min if self.fix == "finfo_min" else float("-inf")
        return F.softmax(self.proj(x).masked_fill(~ok, fill), dim=-1)  # <-- origin


class MoELayer(nn.Module):
    def __init__(self, d, fix, experts=4):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(d), Router(d, experts, 5, fix)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(experts))

    def forward(self, x, lang):
        h = self.norm(x)
        gates = self.router(h, lang)
        return x + sum(gates[..., i:i + 1] * e(h) for i, e in enumerate(self.experts))


class Net(nn.Module):
    def __init__(self, fix, d=12):
        super().__init__()
        self.embed = nn.Embedding(20, d)
        self.layers = nn.ModuleList([MoELayer(d, fix), MoELayer(d, fix)])
        self.head = nn.Linear(d, 20)

    def forward(self, ids, lang):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, lang)
        return self.head(x)


def loss_fn(m, b):
    logits = m(b["ids"], b["lang"])
    return F.cross_entropy(logits.flatten(0, 1), b["next"].flatten())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(19)
    data = []
    for _ in range(10):
        ids = torch.randint(0, 20, (5, 6), generator=g)
        data.append(dict(ids=ids, next=(ids * 3 + 1) % 20, lang=torch.randint(0, 4, (5,), generator=g)))
    data[6]["lang"][3] = 4
    return Case(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=3e-3), clip_norm=1.0)
