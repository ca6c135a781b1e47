"""The doctor over data: counts checked against rows made by hand."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import steadygrad as sg
from steadygrad.checkup.inputs.dataset_rows import read_rows
from steadygrad.records.checks.checkup import Level
from steadygrad.records.errors import UsageError
from steadygrad.reporters.terminal.print_doctor import print_checkup

TOKENIZER = SimpleNamespace(eos_token_id=2, pad_token_id=0)


def row(prompt: int, answer: int, *, end: bool = True, limit: int = 99) -> dict[str, list[int]]:
    """Tokens 5 for the prompt, 6 for the answer, 2 at the end, cut at `limit`; the prompt is masked in the labels."""
    ids = ([5] * prompt + [6] * answer + [2] * end)[:limit]
    labels = ([-100] * prompt + [6] * answer + [2] * end)[:limit]
    return {"input_ids": ids, "labels": labels, "attention_mask": [1] * len(ids)}


def codes(checkup: Any) -> list[str]:
    return [advice.code for advice in checkup.advice]


def test_labels_and_lengths_are_counted_row_by_row() -> None:
    rows = [row(3, 2), row(4, 1), row(1, 5)]  # lengths 6, 6, 7; taught 3, 2, 6
    found = read_rows(rows, tokenizer=TOKENIZER).statistics
    assert (found.num_rows, found.num_rows_seen) == (3, 3)
    assert found.num_tokens == 19
    assert found.num_label_tokens == 19
    assert found.num_taught_tokens == 11
    assert (found.lengths.smallest, found.lengths.median, found.lengths.largest) == (6, 6.0, 7)
    assert (found.taught_lengths.smallest, found.taught_lengths.median, found.taught_lengths.largest) == (2, 3.0, 6)
    assert found.num_rows_with_eos == found.num_rows_eos_taught == 3


def test_rows_that_teach_nothing_are_named_and_become_an_error_at_half() -> None:
    empty = {"input_ids": [5, 5], "labels": [-100, -100]}
    one = sg.doctor(dataset=[row(2, 2), row(2, 3), row(2, 4), empty])
    assert codes(one) == ["PF501"]
    assert one.advice[0].level is Level.WARNING
    assert one.advice[0].subject == "rows 3"
    half = sg.doctor(dataset=[row(2, 2), empty])
    assert half.advice[0].level is Level.ERROR
    assert "1 of 2 rows" in half.advice[0].detail


def test_answers_that_end_at_the_maximum_length_without_an_end_token_are_cut_off() -> None:
    rows = [row(3, 2), row(3, 3), row(3, 40, limit=12), row(5, 40, limit=12), row(6, 40, limit=12), row(6, 5)]
    found = sg.doctor(dataset=rows, tokenizer=TOKENIZER)
    assert codes(found) == ["PF502"]
    assert found.statistics is not None
    assert found.statistics.max_length == 12
    assert found.statistics.num_rows_at_max_length == 4  # the last has just that length, and its end token
    assert found.statistics.num_rows_cut == 3
    assert found.advice[0].subject == "rows 2, 3, 4"


def test_rows_without_any_end_token_are_not_called_cut() -> None:
    rows = [row(3, n, end=False, limit=12) for n in (2, 5, 40, 40, 40)]
    assert codes(sg.doctor(dataset=rows, tokenizer=TOKENIZER)) == []


def test_a_prompt_that_fills_the_length_leaves_nothing_to_learn() -> None:
    rows = [row(3, 2), row(20, 5, limit=10), row(3, 4), row(2, 2), row(1, 1)]
    found = sg.doctor(dataset=rows, tokenizer=TOKENIZER, max_length=10)
    assert codes(found) == ["PF501", "PF502"]
    assert {advice.subject for advice in found.advice} == {"rows 1"}


def test_an_end_token_that_is_always_masked_is_reported_only_where_it_is_the_pad() -> None:
    rows = [{"input_ids": [5, 6, 2], "labels": [5, 6, -100], "attention_mask": [1, 1, 1]} for _ in range(4)]
    same = SimpleNamespace(eos_token_id=2, pad_token_id=2)
    assert codes(sg.doctor(dataset=rows, tokenizer=same)) == ["PF503"]
    assert codes(sg.doctor(dataset=rows, tokenizer=TOKENIZER)) == []


def test_prompts_padded_on_the_right_matter_for_generation_alone() -> None:
    rows = [
        {"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]},
        {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]},
    ]
    assert codes(sg.doctor(dataset=rows, tokenizer=TOKENIZER, generates=True)) == ["PF504"]
    assert codes(sg.doctor(dataset=rows, tokenizer=TOKENIZER)) == []


def test_tokens_labels_and_lengths_are_held_against_the_model() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    model.config = SimpleNamespace(max_position_embeddings=4, model_type="")  # type: ignore[assignment]
    fine = {"input_ids": [1, 9, 3], "labels": [1, 9, 3]}
    assert codes(sg.doctor(model, dataset=[fine])) == []
    outside = {"input_ids": [1, 10, 3], "labels": [-100, -1, 3]}
    long = {"input_ids": [1] * 5, "labels": [1] * 5}
    found = sg.doctor(model, dataset=[fine, outside, long])
    assert codes(found) == ["PF505", "PF508", "PF509"]
    assert [advice.subject for advice in found.advice] == ["row 1", "row 1", "rows 2"]
    with pytest.raises(IndexError):
        model(torch.tensor(outside["input_ids"]))  # what PF505 foretells


def test_empty_rows_and_bad_numbers_are_found_in_whatever_holds_them() -> None:
    rows = [
        {"input_ids": np.array([5, 6]), "attention_mask": np.array([0, 0])},
        {"input_ids": torch.tensor([5, 6]), "attention_mask": torch.tensor([1, 1])},
        {"features": torch.tensor([1.0, math.nan], dtype=torch.bfloat16), "text": "not looked at"},
        {"features": [0.1, math.inf]},
    ]
    found = sg.doctor(dataset=rows)
    assert codes(found) == ["PF506", "PF507"]
    assert found.advice[0].subject == "rows 0"
    assert found.advice[1].subject == "rows 2 (features), 3 (features)"


def test_batches_of_a_loader_are_taken_apart_into_rows() -> None:
    batches = [
        {"input_ids": torch.tensor([[5, 6, 2], [5, 2, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
         "labels": torch.tensor([[-100, 6, 2], [-100, -100, -100]])},
    ]  # fmt: skip
    found = sg.doctor(dataset=batches, tokenizer=TOKENIZER)
    assert found.statistics is not None
    assert found.statistics.num_rows_seen == 2
    assert found.statistics.num_pad_tokens == 1
    assert found.statistics.num_rows_taught_nothing == 1
    pairs = TensorDataset(torch.tensor([[1.0], [math.nan]]), torch.tensor([0, 1]))
    assert codes(sg.doctor(dataset=pairs)) == ["PF507"]
    assert codes(sg.doctor(dataset=DataLoader(pairs, batch_size=2))) == ["PF507"]


def test_only_so_many_rows_are_read_and_it_is_said_how_many() -> None:
    found = sg.doctor(dataset=[row(1, n % 7) for n in range(50)], max_rows=10).statistics
    assert found is not None
    assert (found.num_rows_seen, found.num_rows) == (10, 50)


def test_the_table_says_it_in_words() -> None:
    found = sg.doctor(dataset=[row(3, 2), row(4, 1), row(1, 5)], tokenizer=TOKENIZER)
    screen = Console(file=io.StringIO(), width=100, markup=False, highlight=False)
    print_checkup(screen, found)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "3 of 3 rows looked at" in text
    assert "19, 42.1% of them -100" in text  # 8 of 19
    assert "2 to 6, median 3" in text
    assert "rows that teach nothing" in text
    assert "0 of 3 (0.0%)" in text


def test_it_is_printed_unless_told_otherwise_and_hostile_names_stay_text(capsys: pytest.CaptureFixture[str]) -> None:
    found = sg.doctor(dataset=[{"input_ids": [5, 6], "labels": [-100, -100], "\x1b[2J": [1.0]}])
    text = capsys.readouterr().out
    assert "rows 0 error PF501 labels_all_masked: 1 of 1 rows have no label to learn from: all are -100" in text
    assert "rows that teach nothing   1 of 1 (100.0%)" in text
    assert "columns" in text
    assert "\x1b" not in text
    assert text.strip() == str(found)
    sg.doctor(dataset=[row(1, 2)], show=False)
    assert capsys.readouterr().out == ""


def test_no_rows_and_no_data_set_are_refused_in_words() -> None:
    with pytest.raises(UsageError, match="no rows"):
        sg.doctor(dataset=[])
    with pytest.raises(UsageError, match="not a int"):
        sg.doctor(dataset=5)
