"""nn.Parameter(torch.empty(1, 1, d)) and the author forgot trunc_normal_. Under deterministic algorithms torch fills fresh memory with NaN."""
import torch
from torch import nn
import torch.nn.functional as F
from protocol import Case

TRUTH = dict(id="515_class_token_from_empty", source="written for this set, after a kind of report often seen: class token from empty",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="embed", module_also=["", None], line_marker=None, tensor="embed.cls",
             tensor_kind="parameter", first_bad_step=0, bad_rows=None, fixes_that_work=["init"], fixes_that_do_not=["clip", "skip_batch", "zero_nan_grads", "lr_down"])
FIXES = {"init"}


class PatchEmbed(nn.Module):
    def __init__(self, d, init):
        super().__init__()
        self.proj = nn.Conv2d(1, d, 4, stride=4)
        self.cls = nn.Parameter(torch.empty(1, 1, d))
        self.pos = nn.Parameter(torch.zeros(1, 5, d))
        if init:
            nn.init.trunc_normal_(self.cls, std=0.02)

    def forward(self, img):
        x = self.proj(img).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos


class TinyViT(nn.Module):
    def __init__(self, init=False, d=16):
        super().__init__()
        self.embed = PatchEmbed(d, init)
        self.block = nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(d, 4)

    def forward(self, img):
        return self.head(self.block(self.embed(img))[:, 0])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        model = TinyViT(init=fix == "init")
    finally:
        torch.use_deterministic_algorithms(was)
    data = [(torch.randn(6, 1, 8, 8), torch.randint(4, (6,))) for _ in range(6)]
    return Case(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, torch.optim.AdamW(model.parameters(), lr=5e-4))
