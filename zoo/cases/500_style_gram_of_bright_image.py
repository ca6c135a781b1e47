"""Style transfer under fp16 autocast: the Gram matrix of a bright image's features sums past 65504."""
import torch
import torch.nn.functional as F
from torch import nn
from protocol import Case

TRUTH = dict(id="500_style_gram_of_bright_image", source="written for this set, after a kind of report often seen: style gram of bright image",
             symptom="inf_loss", phase="loss", cause="fp16_overflow", op="bmm", op_also=["matmul", "einsum"], module=None,
             line_marker="# <-- origin", first_bad_step=5, bad_rows=[2],
             fixes_that_work=["fp32", "bf16", "normalise_first", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "zero_nan_grads", "lr_down"])
FIXES = {"normalise_first"}


class TransferNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.res = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.Conv2d(8, 8, 1)
        for conv in (self.down, self.res, self.up):
            nn.init.kaiming_normal_(conv.weight)

    def forward(self, img):
        h = F.relu(self.down(img))
        h = h + F.relu(self.res(h))
        return self.up(h)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = TransferNet()
    gen = torch.Generator().manual_seed(50)
    batches = []
    for step in range(9):
        img = torch.rand(4, 3, 16, 16, generator=gen) * 6  # radiance at night
        if step == 5:
            img[2] = img[2] + 36  # snow at noon
        batches.append({"img": img, "style": torch.rand(4, 8, 8, generator=gen)})

    def gram(feat):
        b, c, h, w = feat.shape
        f = feat.reshape(b, c, h * w)
        if fix == "normalise_first":
            f = f / (c * h * w) ** 0.5
            return torch.bmm(f, f.transpose(1, 2))
        return torch.bmm(f, f.transpose(1, 2)) / (c * h * w)  # <-- origin

    def style_loss(net, batch):
        feats = net(batch["img"])
        return F.l1_loss(gram(feats).float(), batch["style"])

    return Case(net, style_loss, batches, torch.optim.Adam(net.parameters(), 1e-3), autocast=torch.float16)
