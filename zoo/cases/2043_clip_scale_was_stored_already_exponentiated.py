"""A CLIP checkpoint of another code base holds the scale 100, this one holds its logarithm: exp(100) is infinite."""
import torch, torch.nn as nn
from transformers import CLIPConfig, CLIPModel
from protocol import Case
import blocks as B
TRUTH = dict(id="2043_clip_scale_was_stored_already_exponentiated", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="exp", module="clip", line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["clamp", "init"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"clamp", "init"}


class Wrapper(nn.Module):
    def __init__(s):
        super().__init__()
        small = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, projection_dim=8)
        s.clip = CLIPModel(CLIPConfig(text_config=dict(vocab_size=40, max_position_embeddings=8, eos_token_id=39, bos_token_id=0, pad_token_id=1, **small),
                                      vision_config=dict(image_size=8, patch_size=4, **small), projection_dim=8))

    def forward(s, b):
        return s.clip(input_ids=b["ids"], pixel_values=b["img"], return_loss=True).loss  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Wrapper()
    with torch.no_grad():
        m.clip.logit_scale.fill_(4.6 if fix else 100.0)
    g = torch.Generator().manual_seed(81)
    data = []
    for _ in range(5):
        ids = torch.randint(2, 39, (4, 8), generator=g)
        ids[:, -1] = 39
        data.append(dict(ids=ids, img=torch.randn(4, 3, 8, 8, generator=g)))
    return Case(m, lambda m, b: m(b), data, B.adam(m, 1e-4))
