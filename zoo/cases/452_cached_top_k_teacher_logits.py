"""Distillation from cached teacher logits: only the top k were kept and the rest is -inf by design. kl_div with log_target multiplies a zero
probability with minus infinity."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="452_cached_top_k_teacher_logits", source="common report: KL divergence with -inf log targets", symptom="nan_loss", phase="loss", cause="log_zero",
             op="mul", op_also=["kl_div", "sub"], module=None, line_marker="# <-- origin", first_bad_step=3, bad_rows=[0, 2],
             fixes_that_work=["finfo_min", "double_where", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min", "double_where"}


def distil(student, teacher, fix=None, t=2.0):
    if fix == "finfo_min":
        teacher = teacher.clamp(min=-1e4)
    q, p = (student / t).log_softmax(-1), (teacher / t).log_softmax(-1)
    if fix == "double_where":
        keep = p > -torch.inf
        safe = torch.where(keep, p, 0.0)
        return t * t * torch.where(keep, safe.exp() * (safe - q), 0.0).sum(-1).mean()
    return t * t * F.kl_div(q, p, log_target=True, reduction="batchmean")  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, data = nn.Sequential(nn.Embedding(20, 12), nn.Flatten(), nn.Linear(48, 10)), torch.Generator().manual_seed(5), []
    for i in range(7):
        logits = 2 * torch.randn(5, 10, generator=g)
        if i == 3:  # two long answers were cached in the short form
            for r in (0, 2):
                logits[r, logits[r].argsort()[:6]] = -torch.inf
        data.append(dict(input_ids=torch.randint(0, 20, (5, 4), generator=g), teacher=dict(logits=logits)))
    return Case(net, lambda m, b: distil(m(b["input_ids"]), b["teacher"]["logits"], fix), data, B.adam(net, 1e-3))
