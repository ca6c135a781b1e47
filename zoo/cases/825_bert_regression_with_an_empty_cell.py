"""Hugging Face BERT with one regression output: a score cell of the spreadsheet was empty, so one label of the batch is NaN."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="825_bert_regression_with_an_empty_cell", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="labels",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["drop_rows", "skip_batch", "mean_label"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"mean_label"}


def loss_fn(m, b):
    return m(input_ids=b["input_ids"], attention_mask=b["attention_mask"], labels=b["labels"]).loss


def make(seed=0, fix=None):
    from transformers import BertConfig, BertForSequenceClassification
    torch.manual_seed(seed)
    m = BertForSequenceClassification(BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                                                 max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=1))
    g = torch.Generator().manual_seed(25)
    data = [dict(input_ids=torch.randint(3, 40, (4, 10), generator=g), attention_mask=torch.ones(4, 10, dtype=torch.long), labels=torch.rand(4, generator=g) * 5) for _ in range(9)]
    data[5]["labels"][2] = 2.5 if fix else float("nan")
    return Case(m, loss_fn, data, B.adam(m))
