"""bf16 weights, float32 moments of a hand-written Adam. load_state_dict casts the moments to bf16; the resume puts the float32 tensors of the checkpoint back in their place."""
import copy, torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="995_control_moments_restored_in_float32", source="standard practice", looks_like=["dtype_downcast_of_moments", "momentum_not_restored"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.9)


class Adam32(torch.optim.Optimizer):
    def __init__(s, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(s, closure=None):
        for g in s.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = s.state[p]
                if not st:
                    st.update(t=0, m=torch.zeros_like(p, dtype=torch.float32), v=torch.zeros_like(p, dtype=torch.float32))
                st["t"] += 1
                st["m"].lerp_(p.grad.float(), 0.1)
                st["v"].lerp_(p.grad.float() ** 2, 0.01)
                p.sub_((g["lr"] * st["m"] / (1 - 0.9 ** st["t"]) / ((st["v"] / (1 - 0.99 ** st["t"])).sqrt() + 1e-8)).to(p.dtype))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier().bfloat16(), S.cat(S.classes(16, seed=99))
    opt = Adam32(m.parameters(), 1e-2)
    loss_fn = lambda m, b: F.cross_entropy(m(b["x"].bfloat16()).float(), b["y"])

    def before(case, i):
        if i == 10:
            saved = copy.deepcopy(opt.state_dict())
            opt.load_state_dict(saved)
            for st, kept in zip(opt.state.values(), saved["state"].values()):
                st["m"], st["v"] = kept["m"], kept["v"]

    return SCase(m, loss_fn, S.classes(80), opt, before_step=before, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
