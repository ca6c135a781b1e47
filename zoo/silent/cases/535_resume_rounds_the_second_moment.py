"""bf16 weights with an Adam that keeps its moments in fp32. On resume the inherited load_state_dict casts every floating state tensor to the dtype of its parameter:
in bf16 0.999 * v rounds back to v, the second moment of the loud start never decays and the steps stay small."""
import copy, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="535_resume_rounds_the_second_moment", source="constructed on torch.optim.Optimizer.load_state_dict (casts state to the parameter dtype)", symptom="silent", phase="state", cause="dtype_downcast_of_moments", op=None,
             module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=10, knowable_at=10, tensor_kind="optimizer", tensors=["m", "v"],
             static_visible=dict(source="no", objects="no: from step 10 on yes (state dtype changes from float32 to bfloat16)"),
             quality_limit=1e-3, fixes_that_work=["keep_dtype"], fixes_that_do_not=["lr_up", "lr_down", "clip"])
FIXES = {"keep_dtype"}
RESUME, BEFORE = 10, 30


class Adam32(torch.optim.Optimizer):
    def __init__(s, params, lr=5e-3, betas=(0.9, 0.999), eps=1e-8):
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
                    st.update(t=0, m=torch.zeros(p.shape), v=torch.zeros(p.shape))
                st["t"] += 1
                gr = p.grad.float()
                st["m"].mul_(b1).add_((1 - b1) * gr)
                st["v"].mul_(b2).add_((1 - b2) * gr * gr)
                u = (st["m"].float() / (1 - b1 ** st["t"])) / ((st["v"].float() / (1 - b2 ** st["t"])).sqrt() + g["eps"])
                p.sub_((g["lr"] * u).to(p.dtype))


def loss_fn(m, b):
    return torch.nn.functional.cross_entropy(m(b["x"].bfloat16()).float(), b["y"])


def signal(case, i, r):
    d = {v.dtype for s in case.optimizer.state.values() for v in s.values() if torch.is_tensor(v)}
    was = case.extra.get("d", d)
    case.extra["d"] = d
    return i >= 0 and torch.float32 in was and torch.bfloat16 in d


def one(m, opt, b):
    opt.zero_grad()
    loss = loss_fn(m, b)
    loss.backward()
    opt.step()
    return loss


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = S.Classifier().bfloat16()
    opt, data = Adam32(m.parameters()), S.classes(BEFORE + 60)
    for b in S.classes(BEFORE, seed=8, scale=20.0):          # the loud start
        one(m, opt, b)
    opt.zero_grad()

    def before(case, i):
        if i == RESUME:
            saved = copy.deepcopy(case.optimizer.state_dict())
            case.optimizer = Adam32(m.parameters())
            case.optimizer.load_state_dict(saved)  # <-- origin
            if fix:
                for k, p in enumerate(m.parameters()):
                    case.optimizer.state[p].update(copy.deepcopy(saved["state"][k]))

    def step(case, b, i):
        case.extra.setdefault("sq", []).append(None)
        loss = one(m, case.optimizer, b)
        case.extra["sq"][-1] = [p.grad.float().pow(2) for p in m.parameters()]
        if i == RESUME - 1:
            case.extra["v"] = [case.optimizer.state[p]["v"].float().clone() for p in m.parameters()]
        return loss

    def quality(c):                                # second moment against the same recursion, on the same gradients, in fp32
        v = [x.clone() for x in c.extra["v"]]
        for sq in c.extra["sq"][RESUME:]:
            v = [0.999 * a + 0.001 * s for a, s in zip(v, sq)]
        have = [c.optimizer.state[p]["v"].float() for p in m.parameters()]
        return float(sum((a - b).abs().sum() for a, b in zip(have, v)) / sum(b.abs().sum() for b in v))

    return SCase(m, loss_fn, data[BEFORE:], opt, before_step=before, step=step, quality=quality)
