"""A camera position is optimised in UTM metres (northing 5.4 million, ulp 0.5) with Adam steps of one centimetre: the position
keeps its gradient and never changes, while the other parameters learn."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="207_world_offset_never_moves", source="https://github.com/autowarefoundation/autoware_universe/issues/3090",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, op_also=["addcdiv", "addcdiv_"], module="camera", line_marker=None,
             tensor="camera.position", first_bad_step=0, bad_rows=None, fixes_that_work=["local_frame", "fp64", "lr_up"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"local_frame", "fp64", "lr_up"}
ORIGIN = torch.tensor([388096.0, 5448996.0])


class Camera(nn.Module):
    def __init__(s, local):
        super().__init__()
        s.local = local
        s.position = nn.Parameter(torch.tensor([3.0, -2.0]) + (0 if local else ORIGIN))

    def forward(s, points):
        return (points - ORIGIN if s.local else points) - s.position


class Localiser(nn.Module):
    def __init__(s, local):
        super().__init__()
        s.camera, s.field = Camera(local), B.mlp(2, 16, 1)

    def forward(s, points):
        return s.field(s.camera(points) / 10)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Localiser(fix == "local_frame")
    dt = torch.float64 if fix == "fp64" else torch.float32
    m = m.to(dt)
    if fix == "fp64":
        m.camera.position.data = (torch.tensor([3.0, -2.0]).double() + ORIGIN.double())
    start = m.camera.position.detach().clone()

    def loss_fn(m, b):
        return F.mse_loss(m(b["points"].to(dt)), b["y"].to(dt))

    g = torch.Generator().manual_seed(2)
    data = [dict(points=ORIGIN + 64 * torch.randint(-4, 5, (12, 2), generator=g) / 16, y=torch.randn(12, 1, generator=g)) for _ in range(12)]
    opt = torch.optim.Adam([dict(params=m.field.parameters(), lr=1e-3), dict(params=[m.camera.position], lr=1.0 if fix == "lr_up" else 1e-2)])
    return Case(m, loss_fn, data, opt, healthy=lambda log: bool((m.camera.position.detach() != start).all()) and all(r.loss_ok for r in log))
