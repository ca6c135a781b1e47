"""ViT image classification by the Trainer: a broken augmentation (division by the range of a flat patch) left NaN pixels in an image."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="429_vit_image_with_nan_pixels", source="common report: NaN from an augmentation pipeline", symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None,
             line_marker=None, input_key="pixel_values", first_bad_step=3, bad_rows=[1], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


def make(seed=0, fix=None):
    from transformers import ViTConfig, ViTForImageClassification
    torch.manual_seed(seed)
    m = ViTForImageClassification(ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
                                            num_channels=1, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    g = torch.Generator().manual_seed(14)
    data = [dict(pixel_values=torch.rand(4, 1, 8, 8, generator=g), labels=torch.randint(0, 3, (4,), generator=g)) for _ in range(6)]
    data[3]["pixel_values"][1, 0, 2:4, 5:7] = float("nan")
    return Case(m, lambda m, b: m(**b).loss, data, B.adam(m, 1e-3), trainer=lambda: H.trainer(m, data, lr=1e-3))
