"""bf16 weights, Adam with fp32 moments. After the resume a helper moves the optimizer state to the device with v.to(p), which also casts to the dtype of p:
in bf16 a second moment with beta2 = 0.999 rounds back to itself and stands still for the rest of the run."""
import copy, torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1213_state_moved_with_to_param", source="constructed; neighbour: Optimizer.load_state_dict casts state to the parameter dtype", symptom="silent",
             phase="state", cause="dtype_downcast_of_moments", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=10, knowable_at=10, tensor_kind="optimizer",
             tensors=["exp_avg", "exp_avg_sq"], static_visible=dict(source="yes: .to(p) instead of .to(p.device)", objects="no: from step 10 on yes (dtype of the moments)"),
             quality_limit=0.03, margin=3.0, fixes_that_work=["to_device_only"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"to_device_only"}
RESUME = 10


class AdamF32(torch.optim.Optimizer):
    """Adam for bf16 weights, moments in fp32"""
    def __init__(s, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(s):
        for g in s.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = s.state[p]
                if not st:
                    st.update(step=0, exp_avg=torch.zeros_like(p, dtype=torch.float32), exp_avg_sq=torch.zeros_like(p, dtype=torch.float32))
                st["step"] += 1
                d = p.grad.to(st["exp_avg"].dtype)
                st["exp_avg"].mul_(b1).add_(d, alpha=1 - b1)
                st["exp_avg_sq"].mul_(b2).addcmul_(d, d, value=1 - b2)
                m, v = st["exp_avg"].float() / (1 - b1 ** st["step"]), st["exp_avg_sq"].float() / (1 - b2 ** st["step"])
                p.copy_(p.float() - g["lr"] * m / (v.sqrt() + g["eps"]))


def signal(case, i, r):
    """moments that were fp32 are bf16"""
    t = {s["exp_avg_sq"].dtype for s in case.optimizer.state.values() if "exp_avg_sq" in s}
    was = case.extra.get("t", t)
    case.extra["t"] = was or t
    return bool(was) and t != was


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = S.Classifier().bfloat16()
    opt = AdamF32(m.parameters(), lr=1e-4)
    sq = {p: torch.zeros_like(p, dtype=torch.float32) for p in m.parameters()}     # truth only: what fp32 moments would be

    def loss_fn(m, b):
        return F.cross_entropy(m(b["x"].bfloat16()).float(), b["y"])

    def step(case, b, i):
        opt.zero_grad()
        loss = loss_fn(m, b)
        loss.backward()
        for p, v in sq.items():
            v.mul_(0.999).addcmul_(p.grad.float(), p.grad.float(), value=0.001)
        opt.step()
        return loss

    for b in S.classes(300, seed=7):               # the run so far: warm-up
        step(None, b, 0)
    opt.param_groups[0]["lr"] = 5e-3
    opt.zero_grad()

    def before(case, i):
        if i == RESUME:
            for p, st in opt.state.items():
                for k, v in st.items():
                    if torch.is_tensor(v):
                        st[k] = v.to(p.device) if fix else v.to(p)  # <-- origin

    def quality(c):                                # relative error of the second moment at the end of the run
        d = sum(float((opt.state[p]["exp_avg_sq"].float() - v).pow(2).sum()) for p, v in sq.items()) ** 0.5
        return d / sum(float(v.pow(2).sum()) for v in sq.values()) ** 0.5

    return SCase(m, loss_fn, S.classes(150), opt, before_step=before, step=step, quality=quality)
