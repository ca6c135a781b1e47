"""Pictures of two shapes, what is asked about them, and the mask of the shape that is meant.

A scene is drawn from its number alone, so the same number is the same picture everywhere, and training (even numbers)
and measuring (odd numbers) never share one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

COLOURS = {
    "red": (230, 60, 60), "green": (60, 200, 90), "blue": (80, 120, 250), "yellow": (240, 215, 60),
    "white": (245, 245, 245), "pink": (245, 120, 220),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross")
PLACES = ("left", "right", "upper", "lower")
KINDS = ("colour", "shape", "place")


@dataclass(frozen=True)
class Thing:
    """One shape: its name in two words and the pixels it covers."""

    colour: str
    shape: str
    mask: NDArray[np.bool_]

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """A picture, a question about it, and the thing the question means."""

    image: Image.Image
    things: tuple[Thing, ...]
    asked: int
    kind: str
    question: str

    @property
    def meant(self) -> Thing:
        return self.things[self.asked]


def answer(thing: Thing) -> str:
    return f"it is the {thing.name} [SEG] ."


def draw_scene(number: int, size: int = 32) -> Scene:
    """Two things of different colour and shape in different quarters of a noisy background."""
    dice = np.random.default_rng(number)
    background = dice.normal(dice.uniform(20, 60), 10, (size, size, 3)).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(background)
    colours = dice.permutation(list(COLOURS))[:2]
    shapes = dice.permutation(SHAPES)[:2]
    quarters = dice.permutation(4)[:2]
    things, middles = [], []
    for colour, shape, quarter in zip(colours, shapes, quarters, strict=True):
        row, column = divmod(int(quarter), 2)
        radius = dice.uniform(0.15, 0.21) * size
        middle = (np.array([0.25 + 0.5 * column, 0.25 + 0.5 * row]) + dice.uniform(-0.03, 0.03, 2)) * size
        mask = Image.new("1", (size, size))
        for surface, ink in ((image, COLOURS[str(colour)]), (mask, 1)):
            _draw(ImageDraw.Draw(surface), str(shape), middle, radius, ink)
        things.append(Thing(str(colour), str(shape), np.asarray(mask)))
        middles.append((row, column))
    asked = int(dice.integers(2))
    kind = str(dice.choice(KINDS))
    return Scene(image, tuple(things), asked, kind, _question(things[asked], kind, middles, asked, dice))


def _question(thing: Thing, kind: str, places: list[tuple[int, int]], asked: int, dice: np.random.Generator) -> str:
    if kind == "colour":
        return f"segment the {thing.colour} one"
    if kind == "shape":
        return f"segment the {thing.shape}"
    (row, column), (other_row, other_column) = places[asked], places[1 - asked]
    words = ["left" if column < other_column else "right"] if column != other_column else []
    words += ["upper" if row < other_row else "lower"] if row != other_row else []
    return f"segment the {dice.choice(words)} one"


def _draw(pen: ImageDraw.ImageDraw, shape: str, middle: NDArray[np.float64], radius: float, ink: object) -> None:
    x, y = middle
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        pen.ellipse(box, fill=ink)
    elif shape == "square":
        pen.rectangle((x - 0.85 * radius, y - 0.85 * radius, x + 0.85 * radius, y + 0.85 * radius), fill=ink)
    elif shape == "triangle":
        pen.polygon([(x, y - radius), (x + radius, y + radius), (x - radius, y + radius)], fill=ink)
    else:
        third = radius / 2.8
        pen.rectangle((x - third, y - radius, x + third, y + radius), fill=ink)
        pen.rectangle((x - radius, y - third, x + radius, y + third), fill=ink)


def training_number(seed: int, place: int) -> int:
    return 2 * (1_000_000 * (seed + 1) + place)


def measuring_number(place: int) -> int:
    return 2 * place + 1


def grey(image: Image.Image) -> Image.Image:
    """The picture with nothing on it: what the blind control sees."""
    return Image.new("RGB", image.size, (90, 90, 90))
