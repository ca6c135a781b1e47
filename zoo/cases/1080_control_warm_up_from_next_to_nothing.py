"""CONTROL: a warm-up that begins at a ten-millionth of the rate. The first steps are too short for gains of one to notice, and it soon grows."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1080_control_warm_up_from_next_to_nothing", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, 10.0 ** (i - 7)))
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), B.xy(20), optimizer, scheduler=warm)
