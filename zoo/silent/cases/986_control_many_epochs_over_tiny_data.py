"""CONTROL: three batches are all the data there is; they come in the same order for forty epochs. A small model with weight decay; it does not overfit."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="986_control_many_epochs_over_tiny_data", source="standard practice", looks_like=["repeated_batch", "worker_same_seed", "weight_decay_dominates"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.75)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, pool, test = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 4)), S.cat(S.classes(3)), S.cat(S.classes(16, seed=99))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pool["x"], pool["y"]), batch_size=16, shuffle=False)
    batches = [{"x": x, "y": y} for _ in range(40) for x, y in loader]
    opt = torch.optim.AdamW([{"params": [m[1].weight], "weight_decay": 0.3}, {"params": [*m[0].parameters(), m[1].bias], "weight_decay": 0.0}], lr=1e-2)
    return SCase(m, S.ce, batches, opt, extra={"loader": loader}, quality=lambda c: S.heldout_ce(m, test))
