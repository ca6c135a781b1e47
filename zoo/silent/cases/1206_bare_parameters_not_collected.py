"""The optimizer's parameter list is collected by module type (Linear and LayerNorm). The layer scales are bare nn.Parameters of the block: they
get a gradient at every step and never move from 1e-3, so the blocks contribute nothing."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1206_bare_parameters_not_collected", source="constructed", symptom="silent", phase="optimizer",
             cause="optimizer_missing_params", op=None, module="blocks.0", module_also=["blocks.1"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["blocks.0.scale", "blocks.1.scale"], named=dict(kind="never_moves", names=["blocks.0.scale", "blocks.1.scale"]),
             static_visible=dict(source="yes: list by isinstance", objects="yes: two parameters that require grad are in no group"),
             quality_limit=0.4, margin=1.5, fixes_that_work=["all_parameters"], fixes_that_do_not=["clip"])
FIXES = {"all_parameters"}


class Block(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.norm, s.fc1, s.fc2 = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        s.scale = nn.Parameter(torch.full((d,), 1e-3))

    def forward(s, x):
        return x + s.scale * s.fc2(F.gelu(s.fc1(s.norm(x))))


class Net(nn.Module):
    def __init__(s, d=16):
        super().__init__()
        s.stem, s.blocks, s.head = nn.Linear(4, d), nn.ModuleList(Block(d) for _ in range(2)), nn.Linear(d, 2)

    def forward(s, x):
        x = s.stem(x)
        for b in s.blocks:
            x = b(x)
        return s.head(x)


def signal(case, i, r):
    have = {id(p) for g in case.optimizer.param_groups for p in g["params"]}
    return any(p.requires_grad and id(p) not in have for p in case.model.parameters())


def draw(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(32, 4, generator=g) for _ in range(n)]
    return [{"x": v, "y": (v[:, 0] * v[:, 1] > 0).long()} for v in x]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Net(), S.cat(draw(16, 99))
    params = [p for x in m.modules() if isinstance(x, (nn.Linear, nn.LayerNorm)) for p in x.parameters()]  # <-- origin
    opt = torch.optim.Adam(m.parameters() if fix else params, lr=1e-2)
    return SCase(m, S.ce, draw(80, 3), opt, quality=lambda c: S.heldout_ce(m, test))
