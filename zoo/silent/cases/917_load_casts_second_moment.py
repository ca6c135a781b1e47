"""An optimizer of the user's own keeps fp32 moments for bf16 weights. Optimizer.load_state_dict casts floating state to the dtype of its parameter: after the resume the second moment is bf16, v * 0.998
rounds back to v and cannot fall any more: the steps stay as short as in the days of large gradients."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="917_load_casts_second_moment", source="constructed; torch.optim.Optimizer.load_state_dict casts state to param dtype", symptom="silent", phase="state", cause="dtype_downcast_of_moments", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=10, knowable_at=10, tensor_kind="optimizer", tensors=["exp_avg", "exp_avg_sq"],
             static_visible=dict(source="no", objects="no: at the resume yes (state dtype bf16, before it fp32)"), quality_limit=1.5, margin=1.5, fixes_that_work=["cast_back"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"cast_back"}
RESUME, BEFORE = 10, 40


class Adam32(torch.optim.Optimizer):
    """Adam direction with fp32 moments, computed in fp32"""

    def __init__(s, params, lr=8e-3, betas=(0.9, 0.998), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(s, closure=None):
        for g in s.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = s.state[p]
                if not st:
                    st["step"], st["exp_avg"], st["exp_avg_sq"] = 0, torch.zeros_like(p, dtype=torch.float32), torch.zeros_like(p, dtype=torch.float32)
                st["step"] += 1
                d = p.grad.to(st["exp_avg"].dtype)
                st["exp_avg"].mul_(b1).add_(d, alpha=1 - b1)
                st["exp_avg_sq"].mul_(b2).addcmul_(d, d, value=1 - b2)
                m, v = st["exp_avg"].float() / (1 - b1 ** st["step"]), st["exp_avg_sq"].float() / (1 - b2 ** st["step"])
                p.copy_(p.float() - g["lr"] * m / (v.sqrt() + g["eps"]))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"].bfloat16())[:, 0].float(), b["y"] * 2 + 8)


def one(m, opt, b):
    opt.zero_grad()
    loss = loss_fn(m, b)
    loss.backward()
    opt.step()
    return loss


def signal(case, i, r):
    """moments that were fp32 are not any more"""
    low = any(v.dtype != torch.float32 for s in case.optimizer.state.values() for k, v in s.items() if torch.is_tensor(v))
    return i >= 0 and low


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, test = B.mlp(8, 24, 1).bfloat16(), S.regression(BEFORE + 710), S.cat(S.regression(16, seed=9))
    opt = Adam32(m.parameters())
    for b in data[:BEFORE]:                        # the run so far: large gradients, a large second moment
        one(m, opt, b)
    opt.zero_grad()
    ref = copy.deepcopy(m)                         # the same run without interruption, for the truth only
    ro = Adam32(ref.parameters())
    for p, q in zip(m.parameters(), ref.parameters()):
        ro.state[q] = copy.deepcopy(opt.state[p])

    def before(case, i):
        if i == RESUME:
            saved = copy.deepcopy(case.optimizer.state_dict())
            case.optimizer = Adam32(m.parameters())
            case.optimizer.load_state_dict(saved)  # <-- origin
            if fix:
                for k, p in enumerate(m.parameters()):
                    case.optimizer.state[p].update({n: saved["state"][k][n].clone() for n in ("exp_avg", "exp_avg_sq")})

    def quality(c):                                # held-out loss in units of that of the uninterrupted run
        if "ref_done" not in c.extra:
            c.extra["ref_done"] = True
            for b in c.batches:
                one(ref, ro, b)
        return S.in_eval(m, lambda: loss_fn(m, test)) / S.in_eval(ref, lambda: loss_fn(ref, test))

    return SCase(m, loss_fn, data[BEFORE:], opt, before_step=before, step=lambda case, b, i: one(m, case.optimizer, b), quality=quality)
