"""Real pictures for the scenes: photographs that scikit-image carries, and the handwritten digits of scikit-learn.

Both packages are optional and are read when their pictures are first asked for; neither downloads anything. What scenes
are trained on and what they are measured with is apart: other photographs, and other digits written by hand.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from steadygrad import UsageError

NEEDS = {"shapes": None, "photographs": ("skimage", "scikit-image"), "digits": ("sklearn", "scikit-learn")}
TRAINED_ON = ("astronaut", "coffee", "rocket", "hubble_deep_field", "camera", "brick", "grass", "coins")
MEASURED_WITH = ("cat", "stereo_motorcycle", "immunohistochemistry", "retina", "gravel", "clock")
DIGITS_TRAINED_ON = 1200
"""The first so many of the 1,797 digits; the rest are measured with."""


def there_or_refuse(pictures: str) -> None:
    """A sentence about what to choose or to install, before anything is made."""
    if pictures not in NEEDS:
        raise UsageError(f"pictures must be one of {', '.join(NEEDS)}, not {pictures}.")
    needed = NEEDS[pictures]
    if needed and importlib.util.find_spec(needed[0]) is None:
        raise UsageError(f"The pictures {pictures} need {needed[1]}: pip install -e '.[scenes]'.")


def backdrop(dice: np.random.Generator, size: int, *, measuring: bool) -> Image.Image:
    """A square piece of a photograph, from a quarter of its shorter side to the whole of it, at half its brightness."""
    names = MEASURED_WITH if measuring else TRAINED_ON
    picture = photograph(names[int(dice.integers(len(names)))])
    side = dice.uniform(0.25, 1.0) * min(picture.size)
    left, top = (dice.uniform(0, length - side) for length in picture.size)
    piece = picture.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return piece.point(lambda value: value // 2)


def handwritten(dice: np.random.Generator, digit: int, side: int, *, measuring: bool) -> NDArray[np.float64]:
    """How much ink (0 to 1) a digit by some hand leaves on each of side x side pixels."""
    drawings = digits_of(measuring)[digit]
    drawing = Image.fromarray(drawings[int(dice.integers(len(drawings)))])
    return np.asarray(drawing.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64).clip(0, 1)


@cache
def photograph(name: str) -> Image.Image:
    there_or_refuse("photographs")
    from skimage import data

    found = getattr(data, name)()
    return Image.fromarray(found[0] if isinstance(found, tuple) else found).convert("RGB")


@cache
def digits_of(measuring: bool) -> dict[int, NDArray[np.float32]]:
    """The 8 x 8 drawings of each digit, from 0 to 1, of one of the two parts."""
    there_or_refuse("digits")
    from sklearn.datasets import load_digits

    found = load_digits()
    part = slice(DIGITS_TRAINED_ON, None) if measuring else slice(DIGITS_TRAINED_ON)
    drawings, named = (found.images[part] / 16).astype(np.float32), found.target[part]
    return {digit: drawings[named == digit] for digit in range(10)}
