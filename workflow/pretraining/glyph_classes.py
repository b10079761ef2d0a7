"""Choose the glyphs that pretrain the micro backbones, and the classes of the dataset `glyphs`.

    PYTHONPATH=workflow .venv/bin/python -m pretraining.glyph_classes

prints `workflow/resources/glyph_classes.json`. The split is made as follows:

1. Pool: characters that every face of DejaVu Sans and DejaVu Serif maps to a glyph (the fonts'
   cmaps are asked, so no "missing glyph" box is ever drawn). Marks, spaces and control
   characters are left out, and so are box drawing, block and braille cells, whose meaning is
   their place in the cell.
2. Digits are in *neither* set: nothing with a numeric value (fractions, superscripts, circled
   or Roman numbers), nothing whose NFKD form holds a digit, and nothing that looks like a digit
   in any face (O, l, some Cyrillic and phonetic letters). Letters that only resemble one, as S,
   Z and B do, stay. A backbone that is probed on handwritten digits has thus never been taught
   one.
3. One class per shape. Every glyph is scaled to the same box, so size and place do not count
   (c and C are one shape, so are a middle dot and a full stop); of characters that look alike in
   *any* face (Latin A, Greek Alpha, Cyrillic A) the one with the shortest NFKD form and lowest
   code point stays. No two classes ever share a bitmap. Pairs that differ by a little, or in some
   faces only (reversed E and "there exists", accents), stay apart among the source classes, where
   they only make pretraining harder; targets keep a wider distance from everything (4, 5).
4. Targets are the first `TARGETS` shapes, in the order of a hash of their code point, that are
   letters, are in all twelve faces, do not decompose into a letter and a mark, and are not near
   an earlier target in any face.
5. Source classes are the other shapes, less every compound (accented form, ligature) of which a
   target shape is the base and whatever comes near a target in any face.

Everything is a function of the font files.
"""

import hashlib
import json
import unicodedata
from collections.abc import Sequence

import numpy as np

from fedloom.data.sources.glyphs import codes, draw_glyph, faces

TARGETS = 120  # target classes
# Likenesses (cosines of centred pixels, see `likeness`) from which on two characters are one shape.
# Measured: Latin and Greek A 1.00, 3 and Cyrillic Ze 1.00, reversed E and "there exists" 0.98,
# increment and Delta 0.97, A grave and A acute 0.97, 1 and l 0.96, 0 and O 0.94, C and c 0.94,
# 5 and S 0.89, 8 and B 0.85, K and k 0.65
ALIKE = 0.98
ALIKE_FOLD = 0.90  # characters with one NFKD form, case aside: c and C, a and superscript a
ALIKE_DIGIT = 0.90  # a digit and whatever is not one
ALIKE_TARGET = 0.95  # a target class and any other class
_CELLS = ((0x2500, 0x259F), (0x2800, 0x28FF))  # box drawing and blocks, braille


def _is_number(char: str) -> bool:
    """Return True if a part of the character counts: 3, superscript 3, one half, Roman two."""
    parts = char + unicodedata.normalize("NFKD", char)
    return any(unicodedata.numeric(part, None) is not None for part in parts)


def likeness(chars: Sequence[str]) -> np.ndarray:
    """Compute how alike the shapes of characters are, float32 [N, N]: 1 is the same shape.

    It is the greatest cosine of their drawings over the faces, or 1 where the drawing of one in
    some face is, bit for bit, that of the other in another (an underscore in bold, a macron in
    STIX).
    """
    alike = np.zeros((len(chars), len(chars)), np.float32)
    drawn: dict[bytes, int] = {}
    for face in faces():
        looks = np.zeros((len(chars), 32 * 32), np.float32)
        for row, char in enumerate(chars):
            if ord(char) in codes(face):
                drawing = draw_glyph(char, face)
                looks[row] = drawing.ravel() - drawing.mean()
                other = drawn.setdefault(drawing.tobytes(), row)
                alike[row, other] = alike[other, row] = 1
        looks /= np.maximum(np.linalg.norm(looks, axis=1, keepdims=True), 1e-6)
        np.maximum(alike, looks @ looks.T, out=alike)
    return alike


def choose() -> dict[str, str]:
    """Choose source and target classes; the head of this module says how."""
    common = [face for face, family in faces().items() if family in ("DejaVu Sans", "DejaVu Serif")]
    pool = [
        char
        for char in map(chr, frozenset.intersection(*(codes(face) for face in common)))
        if unicodedata.category(char)[0] not in "MZC"
        and not any(low <= ord(char) <= high for low, high in _CELLS)
        and not _is_number(char)
    ]
    pool.sort(key=lambda char: (len(unicodedata.normalize("NFKD", char)), char))
    chars = list("0123456789") + pool
    alike = likeness(chars)
    fold = np.array([unicodedata.normalize("NFKD", char).casefold() for char in chars])
    digit = np.array([char.isdigit() for char in chars])
    bound = np.where(fold[:, None] == fold, ALIKE_FOLD, ALIKE)
    bound = np.where(digit[:, None] ^ digit, ALIKE_DIGIT, bound)
    stands_for: dict[str, str] = {}  # every character -> the first that has its shape
    for index, same in enumerate(alike >= bound):
        first = int(same.argmax())  # itself, if it is like none before it
        stands_for[chars[index]] = stands_for.get(chars[first], chars[first])
    shapes = sorted({char for char in stands_for.values() if not char.isdigit()})
    position = {char: index for index, char in enumerate(chars)}

    def simple(char: str) -> bool:
        """Return True for a letter of all faces that is not composed of others."""
        whole = unicodedata.normalize("NFKD", char) == char
        return (
            whole and unicodedata.category(char) in ("Lu", "Ll", "Lo") and ord(char) in everywhere
        )

    def base(char: str) -> str:
        """Return the first character that has the shape of this one without its marks."""
        first = unicodedata.normalize("NFKD", char)[0]
        return stands_for.get(first, first)

    def order(char: str) -> str:
        """Return the hash by which candidates are sorted."""
        return hashlib.sha256(f"U+{ord(char):04X}".encode()).hexdigest()

    everywhere = frozenset.intersection(*(codes(face) for face in faces()))
    target: list[str] = []
    for char in sorted(filter(simple, shapes), key=order):
        likest = alike[position[char], [position[other] for other in target]].max(initial=0)
        if len(target) < TARGETS and likest < ALIKE_TARGET:
            target.append(char)
    targets = [position[char] for char in target]
    near = alike[:, targets].max(1) >= ALIKE_TARGET  # [N]; a target is near itself
    source = [char for char in shapes if not near[position[char]] and base(char) not in target]
    return {"target": "".join(target), "source": "".join(source)}


if __name__ == "__main__":
    print(json.dumps(choose(), ensure_ascii=False, indent=1))
