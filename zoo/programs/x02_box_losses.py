import math

import torch


def iou_parts(pred, target):
    left = torch.maximum(pred[:, :2], target[:, :2])
    right = torch.minimum(pred[:, 2:], target[:, 2:])
    wh = (right - left).clamp(min=0)
    inter = wh[:, 0] * wh[:, 1]
    area_p = (pred[:, 2] - pred[:, 0]) * (pred[:, 3] - pred[:, 1])
    area_t = (target[:, 2] - target[:, 0]) * (target[:, 3] - target[:, 1])
    union = area_p + area_t - inter
    return inter, union


def ciou_loss(pred, target):
    """Complete IoU: overlap, centre distance and aspect ratio."""
    inter, union = iou_parts(pred, target)
    iou = inter / union
    low = torch.minimum(pred[:, :2], target[:, :2])
    high = torch.maximum(pred[:, 2:], target[:, 2:])
    diagonal = (high - low).square().sum(-1)
    centre = ((pred[:, :2] + pred[:, 2:]) / 2 - (target[:, :2] + target[:, 2:]) / 2).square().sum(-1)
    w_t, h_t = target[:, 2] - target[:, 0], target[:, 3] - target[:, 1]
    w_p, h_p = pred[:, 2] - pred[:, 0], pred[:, 3] - pred[:, 1]
    aspect_t = torch.atan(w_t / h_t)
    aspect_p = torch.atan(w_p / h_p)
    v = 4 / math.pi**2 * (aspect_t - aspect_p).square()
    with torch.no_grad():
        alpha = v / (1 - iou + v)
    return (1 - iou + centre / diagonal + alpha * v).mean()
