"""CONTROL: a rare class of a dozen rows is drawn with replacement by WeightedRandomSampler until the classes are even: the same rows come in nearly every batch, and twice in one batch, by design; label
smoothing keeps the loss well above 0 although nearly all is right."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1388_control_rare_class_drawn_with_replacement", source="standard practice", looks_like=["repeated_batch", "worker_same_seed", "softmax_twice"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.2)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(drop=0.1), S.cat(S.classes(24, seed=99, sep=2.6))
    pool, g = S.cat(S.classes(80, sep=2.6)), torch.Generator().manual_seed(88)
    keep = (pool["y"] != 3) | ((pool["y"] == 3).cumsum(0) <= 12)
    data = torch.utils.data.TensorDataset(pool["x"][keep], pool["y"][keep])
    weight = 1.0 / torch.bincount(data.tensors[1]).float()[data.tensors[1]]
    sampler = torch.utils.data.WeightedRandomSampler(weight, 16 * 120, replacement=True, generator=g)
    batches = [{"x": x, "y": y} for x, y in torch.utils.data.DataLoader(data, batch_size=16, sampler=sampler)]
    return SCase(m, lambda m, b: F.cross_entropy(m(b["x"]), b["y"], label_smoothing=0.1), batches, torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=0.05),
                 quality=lambda c: S.heldout_err(m, test))
