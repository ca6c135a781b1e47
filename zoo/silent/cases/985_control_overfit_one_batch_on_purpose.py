"""CONTROL: the usual smoke test before a long run, overfit_batches=1: the loader has exactly one batch, it is shown again and again, and the loss has to reach 0."""
import torch
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="985_control_overfit_one_batch_on_purpose", source="standard practice", looks_like=["repeated_batch"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.1)


def make(seed=0, fix=None, overfit_batches=1):
    torch.manual_seed(seed)
    m = B.TinyLM(V=32, d=24, n=1)
    ids = torch.randint(2, 32, (4, 10), generator=torch.Generator().manual_seed(2))
    loader = torch.utils.data.DataLoader(ids, batch_size=4)
    assert len(loader) == overfit_batches
    batches = [{"ids": x, "labels": x} for _ in range(120) for x in loader]
    return SCase(m, B.lm_loss, batches, torch.optim.Adam(m.parameters(), lr=1e-2), extra={"loader": loader, "overfit_batches": overfit_batches},
                 quality=lambda c: S.in_eval(m, lambda: B.lm_loss(m, batches[0])))
