"""Samples in a list of records, and samples of a packed batch, are named by their own number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.diagnosis.locate.bad_rows import bad_batch_rows, num_rows
from steadygrad.diagnosis.replay.guard_step import select_rows


def record(count: int) -> dict[str, Tensor]:
    return {"spans": torch.rand(count, 2), "kinds": torch.ones(count)}


def test_records_are_counted_by_their_list_and_not_by_what_each_of_them_holds() -> None:
    batch = {"x": torch.rand(3, 4), "notes": [record(2), record(2), record(5)]}
    batch["notes"][1]["spans"][0, 1] = torch.nan  # type: ignore[index]
    assert num_rows(batch) == 3
    assert bad_batch_rows(batch, "notes.1.spans") == (1,)
    chosen: Any = select_rows(batch, [2])
    assert chosen["x"].shape == (1, 4)
    assert [len(each["kinds"]) for each in chosen["notes"]] == [5]


def test_a_list_of_views_is_no_list_of_records() -> None:
    assert num_rows([{"view": torch.rand(8, 3)}, {"view": torch.rand(8, 3)}]) == 8


class SpreadOfGroups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 1)

    def forward(self, b: dict[str, Tensor]) -> Tensor:
        count = len(b["target"])
        h = self.embed(b["item"])
        total = torch.zeros(count, 4).index_add(0, b["group"], h)
        size = torch.zeros(count).index_add(0, b["group"], torch.ones(len(h)))
        linked = h[b["link"]].sum(1, keepdim=True) * 0
        mean = total / (size - 1)[:, None]  # a group of one
        return self.out(mean).squeeze(1) + linked.sum()  # type: ignore[no-any-return]


def packed(sizes: list[int]) -> dict[str, Tensor]:
    group = torch.cat([torch.full((size,), place) for place, size in enumerate(sizes)])
    item = torch.arange(len(group)) % 9
    return {"item": item, "group": group, "link": torch.arange(len(group)).flip(0), "target": torch.rand(len(sizes))}


def test_a_sample_of_a_packed_batch_is_named_and_not_cut_out() -> None:
    torch.manual_seed(0)
    model = SpreadOfGroups()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.MSELoss()
    with sg.Guard(model, optimizer, loss_fn=lambda m, b: loss(m(b), b["target"])) as guard:
        for sizes in ([3, 2, 4], [2, 3, 3], [4, 3, 1], [2, 2, 4]):
            guard.step(packed(sizes))
        found = guard.incidents[0].diagnosis
    assert found.cause.slug == "zero_division"
    assert found.rows == (2,)
    assert "drop_rows" not in {trial.remedy.slug for trial in found.trials}


def test_texts_one_behind_another_are_told_apart_by_their_lengths() -> None:
    """A CTC loss whose third text does not fit into its frames."""
    torch.manual_seed(0)
    model = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ctc = nn.CTCLoss()

    def loss_fn(model: nn.Module, b: dict[str, Tensor]) -> Tensor:
        return ctc(model(b["x"]).log_softmax(-1).transpose(0, 1), b["text"], b["frames"], b["letters"])  # type: ignore[no-any-return]

    with sg.Guard(model, optimizer, loss_fn=loss_fn) as guard:
        for letters in ([2, 3, 2, 4], [3, 2, 9, 2]):
            frames, text = torch.full((4,), 8), torch.randint(1, 5, (sum(letters),))
            guard.step({"x": torch.randn(4, 8, 3), "frames": frames, "text": text, "letters": torch.tensor(letters)})
        found = guard.incidents[0].diagnosis
    assert (found.cause.slug, found.rows) == ("log_zero", (2,))


def test_a_key_that_lists_the_samples_names_those_of_the_micro_batch_that_failed() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    data = [torch.rand(4, 3) + 0.1 for _ in range(4)]
    data[2][1, 0] = 0.0
    keys = {
        id(batch): f"samples {', '.join(str(10 * place + row) for row in range(4))}" for place, batch in enumerate(data)
    }
    with sg.Guard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        loss_fn=lambda m, x: m(x.log()).square().mean(),
        accumulate=2,
        batch_key=lambda batch: keys[id(batch)],
    ) as guard:
        for batch in data:
            guard.step(batch)
        found = guard.incidents[0].diagnosis
    assert (found.rows, found.sample_ids) == ((1,), ("21",))
