"""bf16 weights with a home-made Adam that keeps its moments in fp32. After the resume load_state_dict has cast them to the dtype of the parameters: 1 - beta2 is less
than half an ulp of bf16, so the second moment never decays again (it can only jump up)."""
import copy, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1113_load_state_dict_casts_moments", source="constructed; documented behaviour of torch.optim.Optimizer.load_state_dict (floating state is cast to the parameter dtype)", symptom="silent", phase="state",
             cause="dtype_downcast_of_moments", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=10, knowable_at=10, tensor_kind="optimizer",
             tensors=["exp_avg", "exp_avg_sq"], static_visible=dict(source="no", objects="no: at the moment of the resume yes (dtype of the state differs from what was saved)"),
             quality_limit=1e-6, fixes_that_work=["cast_back"], fixes_that_do_not=["longer"])
FIXES = {"cast_back"}
RESUME = 10


class Adam32(torch.optim.Optimizer):
    def __init__(s, params, lr, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(s, closure=None):
        for g in s.param_groups:
            (b1, b2), lr, eps = g["betas"], g["lr"], g["eps"]
            for p in g["params"]:
                st, gr = s.state[p], p.grad.float()
                if not st:
                    st["step"], st["exp_avg"], st["exp_avg_sq"] = torch.tensor(0.0), torch.zeros_like(gr), torch.zeros_like(gr)
                st["step"] += 1
                t = float(st["step"])
                m = st["exp_avg"].mul_(b1).add_(gr.to(st["exp_avg"].dtype), alpha=1 - b1)
                v = st["exp_avg_sq"].mul_(b2).add_((gr * gr).to(st["exp_avg_sq"].dtype), alpha=1 - b2)
                up = m.float() / (1 - b1 ** t) / ((v.float() / (1 - b2 ** t)).sqrt() + eps)
                p.copy_(p.float() - lr * up)


def loss_fn(m, b):
    return torch.nn.functional.cross_entropy(m(b["x"].bfloat16()).float(), b["y"])


def one(m, opt, b):
    opt.zero_grad()
    loss = loss_fn(m, b)
    loss.backward()
    opt.step()
    return loss


def signal(case, i, r):
    """the dtype of a moment changes"""
    now = {v.dtype for s in case.optimizer.state.values() for k, v in s.items() if k != "step"}
    was = case.extra.setdefault("dtypes", now)
    return now != was


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = S.Classifier().bfloat16(), S.classes(80)
    opt = Adam32(m.parameters(), lr=5e-3)
    for b in data[:20]:                            # the run so far
        one(m, opt, b)
    opt.zero_grad()
    ref = copy.deepcopy(m)                         # the same run without interruption, for the truth only
    ro = Adam32(ref.parameters(), lr=5e-3)
    for p, q in zip(m.parameters(), ref.parameters()):
        ro.state[q] = {k: v.clone() for k, v in opt.state[p].items()}

    def before(case, i):
        if i == RESUME:
            saved = copy.deepcopy(case.optimizer.state_dict())
            case.optimizer = Adam32(m.parameters(), lr=5e-3)
            case.optimizer.load_state_dict(saved)  # <-- origin
            if fix:
                for k, p in enumerate(m.parameters()):
                    case.optimizer.state[p].update({n: saved["state"][k][n].clone() for n in ("exp_avg", "exp_avg_sq")})

    def quality(c):                                # distance from the uninterrupted run at its end
        if "ref_done" not in c.extra:
            c.extra["ref_done"] = True
            for b in c.batches:
                one(ref, ro, b)
        d = sum(float((p.float() - q.float()).detach().pow(2).sum()) for p, q in zip(m.parameters(), ref.parameters())) ** 0.5
        return d / sum(float(q.detach().float().pow(2).sum()) for q in ref.parameters()) ** 0.5

    return SCase(m, loss_fn, data[20:], opt, before_step=before, step=lambda case, b, i: one(m, case.optimizer, b), quality=quality)
