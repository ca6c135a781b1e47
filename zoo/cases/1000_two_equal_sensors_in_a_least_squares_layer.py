"""A layer solves the normal equations of a few sensors for every sample with solve_ex, which raises nothing. Where two sensors read exactly
the same the matrix has no inverse, a pivot is zero, and the solution is infinite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="1000_two_equal_sensors_in_a_least_squares_layer", source="common report: solve_ex of a singular matrix gives inf",
             symptom="nan_loss", phase="forward", cause="zero_division", op="linalg_solve_ex", module="solve", line_marker="# <-- origin", first_bad_step=6, bad_rows=[1, 4],
             fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Solve(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, gram, right):
        if self.fix == "eps":
            gram = gram + 1e-3 * torch.diag(torch.tensor([1.0, 2.0]))
        return torch.linalg.solve_ex(gram, right)[0]  # <-- origin


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.target, self.solve, self.out = nn.Linear(4, 2), Solve(fix), nn.Linear(2, 1)

    def forward(self, gram, x):
        return self.out(self.solve(gram, self.target(x)[..., None])[..., 0])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(100)
    data = []
    for _ in range(11):
        gram = torch.eye(2) + 0.2 * torch.rand(6, 2, 2, generator=g)
        data.append(dict(gram=gram, x=torch.randn(6, 4, generator=g), y=torch.randn(6, 1, generator=g)))
    data[6]["gram"][[1, 4]] = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    return Case(m, lambda m, b: F.mse_loss(m(b["gram"], b["x"]), b["y"]), data, torch.optim.Adam(m.parameters(), lr=1e-3))
