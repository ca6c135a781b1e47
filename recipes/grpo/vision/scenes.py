"""Pictures of two things, what is asked about them, and the mask of the thing that is meant.

The things are shapes on noise, shapes on photographs, or handwritten digits.

A scene is drawn from its number alone, so the same number is the same picture everywhere, and training (even numbers)
and measuring (odd numbers) never share one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .sources import backdrop, handwritten

COLOURS = {
    "red": (230, 60, 60), "green": (60, 200, 90), "blue": (80, 120, 250), "yellow": (240, 215, 60),
    "white": (245, 245, 245), "pink": (245, 120, 220),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = ("left", "right", "upper", "lower")
KINDS = ("colour", "shape", "place")


@dataclass(frozen=True)
class Thing:
    """One shape or digit: its name in two words and the pixels it covers."""

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


def shapes_of(pictures: str) -> tuple[str, ...]:
    """What a thing can be besides its colour."""
    return DIGITS if pictures == "digits" else SHAPES


def some_of(pictures: str) -> str:
    """The word for a thing whose shape is not said; "the red one" would be a name where things are digits."""
    return "digit" if pictures == "digits" else "one"


def draw_scene(number: int, size: int = 32, pictures: str = "shapes") -> Scene:
    """Two things of different colour and shape in different quarters of noise or of a photograph."""
    dice, measuring = np.random.default_rng(number), number % 2 == 1
    if pictures == "photographs":
        image = backdrop(dice, size, measuring=measuring)
    else:
        background = dice.normal(dice.uniform(20, 60), 10, (size, size, 3)).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(background)
    colours = dice.permutation(list(COLOURS))[:2]
    shapes = dice.permutation(shapes_of(pictures))[:2]
    quarters = dice.permutation(4)[:2]
    things, middles = [], []
    for colour, shape, quarter in zip(colours, shapes, quarters, strict=True):
        row, column = divmod(int(quarter), 2)
        radius = dice.uniform(0.15, 0.21) * size
        middle = (np.array([0.25 + 0.5 * column, 0.25 + 0.5 * row]) + dice.uniform(-0.03, 0.03, 2)) * size
        if pictures == "digits":
            drawing = handwritten(dice, DIGITS.index(str(shape)), round(2 * radius), measuring=measuring)
            mask = _write(image, drawing, middle, COLOURS[str(colour)])
        else:
            mask = Image.new("1", (size, size))
            for surface, ink in ((image, COLOURS[str(colour)]), (mask, 1)):
                _draw(ImageDraw.Draw(surface), str(shape), middle, radius, ink)
        things.append(Thing(str(colour), str(shape), np.asarray(mask)))
        middles.append((row, column))
    asked = int(dice.integers(2))
    kind = str(dice.choice(KINDS))
    question = _question(things[asked], kind, some_of(pictures), middles, asked, dice)
    return Scene(image, tuple(things), asked, kind, question)


def _question(
    thing: Thing, kind: str, some: str, places: list[tuple[int, int]], asked: int, dice: np.random.Generator
) -> str:
    if kind == "colour":
        return f"segment the {thing.colour} {some}"
    if kind == "shape":
        return f"segment the {thing.shape}"
    (row, column), (other_row, other_column) = places[asked], places[1 - asked]
    words = ["left" if column < other_column else "right"] if column != other_column else []
    words += ["upper" if row < other_row else "lower"] if row != other_row else []
    return f"segment the {dice.choice(words)} {some}"


def _write(
    image: Image.Image, drawing: NDArray[np.float64], middle: NDArray[np.float64], ink: tuple[int, int, int]
) -> Image.Image:
    """Puts a drawing on the picture, in colour; its mask is where there is more ink than ground."""
    corner = tuple(round(value - len(drawing) / 2) for value in middle.tolist())
    stencil, mask = Image.fromarray((255 * drawing).astype(np.uint8)), Image.new("1", image.size)
    image.paste(ink, corner, stencil)
    mask.paste(1, corner, Image.fromarray(drawing > 0.5))
    return mask


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
