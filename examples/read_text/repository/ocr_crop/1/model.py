"""Third step of read_text: the detector's map → boxes around lines of text, and the lines cut out for the recogniser.

Connected areas of likely text become upright boxes, so text should run horizontally. The detector marks the core of
each line; a box grows by area × 1.6 / perimeter to hold the whole line, the rule the detector was trained with.
"""

from typing import Any

import numpy as np
from PIL import Image

LIKELY = 0.3  # a pixel belongs to text
CERTAIN = 0.5  # mean of a box that is kept
GROWTH = 1.6
HEIGHT = 48
SMALLEST = 3

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[int, int, int, int]  # left, top, right, bottom; right and bottom are exclusive


def predict(pixels: Array, map: Array) -> dict[str, Array]:  # noqa: A002 - the name of the input
    """pixels: UINT8 [h, w, 3], map: FP32 [1, 1, h', w'] → boxes: INT32 [n, 4], lines: FP32 [n, 3, 48, width]."""
    found = reading_order([scaled(box, pixels, map[0, 0]) for box in text_boxes(map[0, 0])])
    # The recogniser needs at least one line; a blank one reads as no text.
    lines = [cut(pixels, box) for box in found] or [np.zeros((3, HEIGHT, HEIGHT), np.float32)]
    width = max(line.shape[2] for line in lines)
    padded = [np.pad(line, ((0, 0), (0, 0), (0, width - line.shape[2]))) for line in lines]
    return {"boxes": np.array(found, dtype=np.int32).reshape(-1, 4), "lines": np.stack(padded)}


def text_boxes(probability: Array) -> list[Box]:
    boxes = []
    for left, top, right, bottom in connected(probability > LIKELY):
        width, height = right - left, bottom - top
        if min(width, height) >= SMALLEST and probability[top:bottom, left:right].mean() >= CERTAIN:
            margin = round(GROWTH * width * height / (2 * (width + height)))
            boxes.append((left - margin, top - margin, right + margin, bottom + margin))
    return boxes


def connected(mask: Array) -> list[Box]:
    """Bounding boxes of connected areas: runs of set pixels, row by row, joined where they touch the row above."""
    areas: dict[int, Box] = {}
    above: list[tuple[int, int, int]] = []
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.pad(row.astype(np.int8), 1)))
        current: list[tuple[int, int, int]] = []
        for start, stop in edges.reshape(-1, 2).tolist():
            touching = {area for begin, end, area in above if begin < stop and start < end}
            area = join(areas, touching, (start, y, stop, y + 1))
            above = [(begin, end, area if of in touching else of) for begin, end, of in above]
            current = [(begin, end, area if of in touching else of) for begin, end, of in current]
            current.append((start, stop, area))
        above = current
    return list(areas.values())


def join(areas: dict[int, Box], touching: set[int], run: Box) -> int:
    """Merges a run and the areas it touches into one; returns that area's number."""
    parts = [run, *(areas.pop(number) for number in touching)]
    left, top, right, bottom = zip(*parts, strict=True)
    number = min(touching, default=max(areas, default=-1) + 1)
    areas[number] = (min(left), min(top), max(right), max(bottom))
    return number


def scaled(box: Box, pixels: Array, probability: Array) -> Box:
    """From the map's pixels to the picture's, inside the picture."""
    height, width = pixels.shape[:2]
    x, y = width / probability.shape[1], height / probability.shape[0]
    left, top, right, bottom = box
    return max(0, round(left * x)), max(0, round(top * y)), min(width, round(right * x)), min(height, round(bottom * y))


def reading_order(boxes: list[Box]) -> list[Box]:
    """Top to bottom; boxes whose middles lie within the first one's height stand in one row, left to right."""
    rows: list[list[Box]] = []
    for box in sorted(boxes, key=lambda b: b[1] + b[3]):
        if rows and (box[1] + box[3]) / 2 < rows[-1][0][3]:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [box for row in rows for box in sorted(row)]


def cut(pixels: Array, box: Box) -> Array:
    """One line, 48 pixels high: [3, 48, width] in BGR order from -1 to 1."""
    left, top, right, bottom = box
    width = max(HEIGHT, round(HEIGHT * (right - left) / (bottom - top)))
    line = Image.fromarray(pixels[top:bottom, left:right]).resize((width, HEIGHT), Image.Resampling.BILINEAR)
    bgr = np.asarray(line, dtype=np.float32)[:, :, ::-1].transpose(2, 0, 1)
    return np.ascontiguousarray(bgr) / 127.5 - 1.0
