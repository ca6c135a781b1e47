"""Q-learning from a replay buffer: the simulator crashed and wrote an infinite reward into one transition."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="817_simulator_pays_an_infinite_reward", source="written for this set after a common mistake; no single report",
             symptom="inf_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="reward",
             first_bad_step=6, bad_rows=[5], fixes_that_work=["drop_rows", "skip_batch", "clip_reward"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clip_reward"}


class Agent(nn.Module):
    def __init__(s):
        super().__init__()
        s.online = B.mlp(6, 32, 3, nn.ReLU)
        s.target = copy.deepcopy(s.online).requires_grad_(False)


def make(seed=0, fix=None):
    m = Agent()

    def loss_fn(m, b):
        q = m.online(b["obs"]).gather(1, b["act"][:, None]).squeeze(1)
        with torch.no_grad():
            r = b["reward"].clamp(-1, 1) if fix else b["reward"]
            y = r + 0.97 * (1 - b["done"]) * m.target(b["next"]).amax(1)
        return F.smooth_l1_loss(q, y)

    g = torch.Generator().manual_seed(17)
    data = [dict(obs=torch.randn(8, 6, generator=g), act=torch.randint(0, 3, (8,), generator=g), reward=torch.randn(8, generator=g),
                 next=torch.randn(8, 6, generator=g), done=(torch.rand(8, generator=g) > 0.9).float()) for _ in range(11)]
    data[6]["reward"][5] = float("inf")

    def sync(case, i):
        if i % 4 == 0:
            case.model.target.load_state_dict(case.model.online.state_dict())

    return Case(m, loss_fn, data, torch.optim.Adam(m.online.parameters(), lr=1e-3), before_step=sync)
