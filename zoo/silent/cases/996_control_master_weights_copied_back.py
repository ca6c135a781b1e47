"""bf16 network, float32 master weights in the optimizer, copied back through .data after every update: the network's own parameters are in no optimizer and change no version counter."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="996_control_master_weights_copied_back", source="standard practice", looks_like=["update_lost_in_copy", "optimizer_missing_params"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.9)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier().bfloat16(), S.cat(S.classes(16, seed=99))
    masters = [p.detach().float().clone() for p in m.parameters()]
    opt = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    loss_fn = lambda m, b: F.cross_entropy(m(b["x"].bfloat16()).float(), b["y"])

    def step(case, b, i):
        m.zero_grad()
        loss = loss_fn(m, b)
        loss.backward()
        for p, q in zip(m.parameters(), masters):
            q.grad = p.grad.float()
        opt.step()
        for p, q in zip(m.parameters(), masters):
            p.data.copy_(q)
        return loss

    return SCase(m, loss_fn, S.classes(80), opt, step=step, extra={"masters": masters}, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
