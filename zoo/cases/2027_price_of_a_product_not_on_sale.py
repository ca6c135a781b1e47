"""A tabular model with several inputs: the shop has no price for one product and the export wrote NaN, three levels deep in the batch."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
NAN = float("nan")
TRUTH = dict(id="2027_price_of_a_product_not_on_sale", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, module_also=["num", ""], line_marker=None,
             first_bad_step=4, bad_rows=[6], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = set()


class Tab(nn.Module):
    def __init__(s):
        super().__init__()
        s.cat, s.num = nn.Embedding(30, 8), nn.Linear(3, 8)
        s.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        s.out = nn.Linear(8, 1)

    def forward(s, f):
        tokens = torch.cat([s.cat(f["cat"]["ids"]), s.num(f["num"]["price_stock_age"])[:, None]], 1)
        return s.out(s.layer(tokens).mean(1)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Tab()
    g = torch.Generator().manual_seed(51)
    data = [dict(features=dict(cat=dict(ids=torch.randint(0, 30, (8, 4), generator=g)), num=dict(price_stock_age=torch.randn(8, 3, generator=g))),
                 click=torch.randint(0, 2, (8,), generator=g).float()) for _ in range(8)]
    data[4]["features"]["num"]["price_stock_age"][6, 0] = NAN
    return Case(m, lambda m, b: F.binary_cross_entropy_with_logits(m(b["features"]), b["click"]), data, B.adam(m, 1e-3))
