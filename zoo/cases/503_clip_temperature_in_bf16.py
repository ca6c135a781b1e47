"""CLIP cast to bf16 as a whole: logit_scale is 2.66, an ulp there is 0.0156, Adam's steps of 1e-3 are rounded away for ever."""
import math
import torch
import torch.nn.functional as F
from torch import nn
from protocol import Case

TRUTH = dict(
    id="503_clip_temperature_in_bf16",
    source="written for this set, after a kind of report often seen: logit_scale stays constant with pure_bf16",
    symptom="silent", phase="optimizer", cause="lost_update", op=None, op_also=["add", "addcdiv"], module=None, module_also=[""],
    line_marker=None, tensor="logit_scale", first_bad_step=0, bad_rows=None,
    fixes_that_work=["fp32"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"],
)
FIXES = {"fp32"}


class TwoTowers(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, dim))
        self.text = nn.EmbeddingBag(40, dim, mode="mean")
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, text):
        i = F.normalize(self.image(image), dim=-1)
        t = F.normalize(self.text(text), dim=-1)
        return self.logit_scale.exp() * i @ t.T


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dtype = torch.float32 if fix == "fp32" else torch.bfloat16
    model = TwoTowers().to(dtype)
    start = model.logit_scale.item()

    def contrastive(model, batch):
        logits = model(batch["image"].to(dtype), batch["text"]).float()
        target = torch.arange(len(logits))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    batches = [dict(image=torch.randn(8, 12), text=torch.randint(0, 40, (8, 5))) for _ in range(14)]
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    return Case(model, contrastive, batches, opt, healthy=lambda log: model.logit_scale.item() != start)
