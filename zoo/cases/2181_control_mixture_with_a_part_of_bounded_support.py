"""CONTROL: outliers are explained by a mixture of a learned bell and a uniform part on [-3, 3]. Outside of that the uniform log density is -inf, the log-sum-exp of both is not."""
import torch, torch.nn as nn
from torch.distributions import Normal, Uniform
from protocol import Case
import blocks as B
TRUTH = dict(id="2181_control_mixture_with_a_part_of_bounded_support", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Robust(nn.Module):
    def __init__(s):
        super().__init__()
        s.net, s.log_scale, s.mix = B.mlp(8, 24, 1), nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(2))

    def forward(s, x, y):
        bell = Normal(s.net(x), s.log_scale.exp()).log_prob(y)
        flat = Uniform(-3.0, 3.0, validate_args=False).log_prob(y)
        return torch.logsumexp(torch.stack([bell, flat], -1) + s.mix.log_softmax(0), -1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Robust()
    data = B.xy(16, seed=9)
    g = torch.Generator().manual_seed(10)
    for b in data:
        b["y"] = b["y"] + (torch.rand(6, 1, generator=g) < 0.3) * 6 * torch.randn(6, 1, generator=g)
    return Case(m, lambda m, b: -m(b["x"], b["y"]).mean(), data, B.adam(m, 3e-3))
