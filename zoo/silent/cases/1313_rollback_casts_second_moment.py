"""bf16 network, an Adam of the house with fp32 moments. The trainer keeps a snapshot in memory and goes back to it when an evaluation is worse than the last one; the state comes back
through Optimizer.load_state_dict, which casts it to the dtype of the parameters. After the first rollback the second moment can only jump, never decay."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1313_rollback_casts_second_moment", source="constructed; documented behaviour of torch.optim.Optimizer.load_state_dict", symptom="silent", phase="state",
             cause="dtype_downcast_of_moments", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=15, knowable_at=15, tensor_kind="optimizer",
             tensors=["exp_avg", "exp_avg_sq"], static_visible=dict(source="no", objects="no: at the rollback yes (dtype of the state differs from what was saved)"),
             quality_limit=1e-6, fixes_that_work=["put_fp32_back"], fixes_that_do_not=["lr_down", "longer"])
FIXES = {"put_fp32_back"}
ROLLBACK = 15


class HouseAdam(torch.optim.Optimizer):
    def __init__(s, params, lr, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(s, closure=None):
        for g in s.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                st, gr = s.state[p], p.grad.float()
                if not st:
                    st.update(step=0, exp_avg=torch.zeros_like(gr), exp_avg_sq=torch.zeros_like(gr))
                st["step"] += 1
                st["exp_avg"].mul_(b1).add_(gr, alpha=1 - b1)
                st["exp_avg_sq"].mul_(b2).addcmul_(gr, gr, value=1 - b2)
                m, v = st["exp_avg"].float() / (1 - b1 ** st["step"]), st["exp_avg_sq"].float() / (1 - b2 ** st["step"])
                p.copy_(p.float() - g["lr"] * m / (v.sqrt() + g["eps"]))


class Cnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.fc, s.out = nn.Conv1d(2, 12, 3, padding=1), nn.Linear(12, 24), nn.Linear(24, 3)

    def forward(s, x):
        return s.out(torch.relu(s.fc(torch.relu(s.conv(x)).mean(-1))))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"].bfloat16()).float(), b["y"])


def waves(n, bs, g):
    t, out = torch.arange(16) / 16 * 6.28, []
    for _ in range(n):
        y, ph = torch.randint(0, 3, (bs,), generator=g), torch.rand(bs, 1, generator=g) * 6.28
        x = torch.stack([torch.sin((y[:, None] + 1) * t + ph), torch.cos((y[:, None] + 1) * t + ph)], 1)
        out.append({"x": x + 0.5 * torch.randn(bs, 2, 16, generator=g), "y": y})
    return out


def one(m, opt, b):
    opt.zero_grad()
    loss = loss_fn(m, b)
    loss.backward()
    opt.step()
    return loss


def signal(case, i, r):
    """the dtype of a moment changes"""
    now = {v.dtype for s in case.optimizer.state.values() for k, v in s.items() if k != "step"}
    return bool(now) and now != case.extra.setdefault("dtypes", now)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Cnn().bfloat16(), torch.Generator().manual_seed(33)
    data = waves(90, 16, g)
    opt = HouseAdam(m.parameters(), lr=5e-3)
    ref = copy.deepcopy(m)                         # the same run with exact snapshots, for the truth only
    ro, kept = HouseAdam(ref.parameters(), lr=5e-3), {}

    def snapshot():
        kept["model"], kept["opt"] = copy.deepcopy(m.state_dict()), copy.deepcopy(opt.state_dict())

    def rollback():
        m.load_state_dict(kept["model"])
        opt.load_state_dict(kept["opt"])  # <-- origin
        if fix:
            for k, p in enumerate(m.parameters()):
                opt.state[p] = {n: v.clone() if torch.is_tensor(v) else v for n, v in kept["opt"]["state"][k].items()}

    def before(case, i):
        if i == ROLLBACK - 5:
            snapshot()
        if i == ROLLBACK:                          # the evaluation was worse than five steps before
            rollback()

    def quality(c):                                # distance from the run with exact snapshots
        if "ref_done" not in c.extra:
            c.extra["ref_done"] = True
            for i, b in enumerate(c.batches):
                if not ROLLBACK - 5 <= i < ROLLBACK:
                    one(ref, ro, b)
        d = sum(float((p.float() - q.float()).detach().pow(2).sum()) for p, q in zip(m.parameters(), ref.parameters())) ** 0.5
        return d / sum(float(q.detach().float().pow(2).sum()) for q in ref.parameters()) ** 0.5

    return SCase(m, loss_fn, data, opt, before_step=before, step=lambda case, b, i: one(m, opt, b), quality=quality)
