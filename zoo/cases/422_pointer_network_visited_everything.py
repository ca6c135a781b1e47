"""A pointer network for routing, trained with REINFORCE: an instance with fewer cities has visited all of them before the others are
done, every logit of its next step is -inf and log_softmax returns NaN."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="422_pointer_network_visited_everything", source="common report: attention model for TSP, all nodes masked",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="log_softmax", module="pointer", line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[2], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min"}


class Pointer(nn.Module):
    def __init__(self, d, neg):
        super().__init__()
        self.q, self.k, self.neg = nn.Linear(d, d), nn.Linear(d, d), neg

    def forward(self, state, nodes, visited):
        u = 10 * torch.tanh((self.k(nodes) @ self.q(state).unsqueeze(-1)).squeeze(-1))
        u[visited] = self.neg
        return u.log_softmax(dim=-1)  # <-- origin


class Agent(nn.Module):
    def __init__(self, neg):
        super().__init__()
        self.embed, self.pointer, self.rnn = nn.Linear(2, 8), Pointer(8, neg), nn.GRUCell(8, 8)

    def forward(self, cities, absent, tour):
        nodes, visited = self.embed(cities), absent.clone()
        h, total = nodes.mean(1), 0.0
        rows = torch.arange(len(cities))
        for t in range(tour.shape[1]):
            lp = self.pointer(h, nodes, visited)
            total = total + lp[rows, tour[:, t]] * (t < (~absent).sum(1))
            visited = visited.clone()
            visited[rows, tour[:, t]] = True
            h = self.rnn(nodes[rows, tour[:, t]], h)
        return total


def reinforce(agent, b):
    logp = agent(b["cities"], b["absent"], b["tour"])
    return -((b["cost"].mean() - b["cost"]) * logp).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    agent, g, data = Agent(-1e9 if fix == "finfo_min" else -torch.inf), torch.Generator().manual_seed(19), []
    for i in range(7):
        cities = torch.rand(4, 6, 2, generator=g)
        tour = torch.stack([torch.randperm(6, generator=g) for _ in range(4)])[:, :5]
        absent = torch.zeros(4, 6, dtype=torch.bool)
        if i == 3:  # only the cities of its first three moves exist
            absent[2] = True
            absent[2, tour[2, :3]] = False
        data.append(dict(cities=cities, absent=absent, tour=tour, cost=torch.rand(4, generator=g)))
    return Case(agent, reinforce, data, B.adam(agent, 1e-3))
