"""The embedded data: each row is one digit handwritten, dialled and spelled, and each way is spoiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from dxn.data.rows import Rows, Source
from dxn.errors import UserError

RATE = 8000  # hertz, as on a telephone line
LOW = (697, 770, 852, 941)  # hertz of a key's row, ITU-T Q.23
HIGH = (1209, 1336, 1477)  # hertz of its column
KEYS = ("123", "456", "789", "*0#")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"

# The digits 0 to 9 in each language, as they are spelled.
WORDS = {
    "English": "zero one two three four five six seven eight nine",
    "German": "null eins zwei drei vier fünf sechs sieben acht neun",
    "French": "zéro un deux trois quatre cinq six sept huit neuf",
    "Spanish": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "Italian": "zero uno due tre quattro cinque sei sette otto nove",
    "Portuguese": "zero um dois três quatro cinco seis sete oito nove",
    "Dutch": "nul een twee drie vier vijf zes zeven acht negen",
    "Swedish": "noll ett två tre fyra fem sex sju åtta nio",
    "Danish": "nul en to tre fire fem seks syv otte ni",
    "Finnish": "nolla yksi kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän",
    "Polish": "zero jeden dwa trzy cztery pięć sześć siedem osiem dziewięć",
    "Czech": "nula jedna dvě tři čtyři pět šest sedm osm devět",
    "Hungarian": "nulla egy kettő három négy öt hat hét nyolc kilenc",
    "Romanian": "zero unu doi trei patru cinci șase șapte opt nouă",
    "Turkish": "sıfır bir iki üç dört beş altı yedi sekiz dokuz",
    "Indonesian": "nol satu dua tiga empat lima enam tujuh delapan sembilan",
    "Swahili": "sifuri moja mbili tatu nne tano sita saba nane tisa",
    "Welsh": "dim un dau tri pedwar pump chwech saith wyth naw",
    "Basque": "zero bat bi hiru lau bost sei zazpi zortzi bederatzi",
    "Latin": "nihil unus duo tres quattuor quinque sex septem octo novem",
    "Esperanto": "nul unu du tri kvar kvin ses sep ok naŭ",
    "Russian": "ноль один два три четыре пять шесть семь восемь девять",
    "Bulgarian": "нула едно две три четири пет шест седем осем девет",
    "Greek": "μηδέν ένα δύο τρία τέσσερα πέντε έξι επτά οκτώ εννέα",
    "Arabic": "صفر واحد اثنان ثلاثة أربعة خمسة ستة سبعة ثمانية تسعة",
    "Hebrew": "אפס אחת שתיים שלוש ארבע חמש שש שבע שמונה תשע",
    "Hindi": "शून्य एक दो तीन चार पांच छह सात आठ नौ",
    "Chinese": "零 一 二 三 四 五 六 七 八 九",
    "Japanese": "ゼロ いち に さん よん ご ろく なな はち きゅう",
    "Korean": "영 일 이 삼 사 오 육 칠 팔 구",
}


def digits(
    *,
    num_train: int = 2000,
    num_validation: int = 300,
    num_test: int = 600,
    spoil: float = 1.0,
    missing: float = 0.0,
    seed: int = 0,
) -> Source:
    """Three views of a digit: image uint8 (8, 8), audio (float32 (T,), 8000), text. Every array follows from seed.

    Args:
        num_train: rows of the training split.
        num_validation: rows of the validation split.
        num_test: rows of the test split.
        spoil: strength of noise, occlusion and typing errors; 0 for clean views.
        missing: probability that a row lacks a view, never all three.
        seed: of everything random.

    Raises UserError for a split without a row, missing outside [0, 1) and a negative spoil.
    """
    if min(num_train, num_validation, num_test) < 1:
        raise UserError(f"data: every split needs a row, got {num_train}, {num_validation} and {num_test}")
    if not 0 <= missing < 1:
        raise UserError(f"data.missing must be from 0 to below 1, got {missing}")
    if spoil < 0:
        raise UserError(f"data.spoil must be 0 (clean) or more, got {spoil}")
    rng = np.random.default_rng(seed)
    flat, labels = load_digits(return_X_y=True)
    pictures, labels = np.asarray(flat).reshape(-1, 8, 8) / 16, np.asarray(labels)
    order = rng.permutation(len(labels))
    # Shares of the 1,797 pictures: a picture of one split is in no other.
    pools = dict(zip(("train", "validation", "test"), np.split(order, [1300, 1400]), strict=True))
    counts = {"train": num_train, "validation": num_validation, "test": num_test}
    splits = {
        name: _rows(rng, pictures[pool], labels[pool], counts[name], spoil=spoil, missing=missing)
        for name, pool in pools.items()
    }
    columns = {"text": "spelled", "image": "handwritten", "audio": "dialled", "target": "digit"}
    return Source(splits, "class", columns, ["made on the spot, each view spoiled so that none is enough alone"])


def _rows(
    rng: np.random.Generator, pictures: np.ndarray, labels: np.ndarray, count: int, *, spoil: float, missing: float
) -> Rows:
    """count rows of these pictures; one is used again only after all the others, spoiled anew."""
    picks = np.concatenate([rng.permutation(len(labels)) for _ in range(-(-count // len(labels)))])[:count]
    cells: dict[str, list[Any]] = {"text": [], "image": [], "audio": [], "target": []}
    for pick in picks:
        digit = int(labels[pick])
        views: dict[str, Any] = {
            "text": _spell(rng, digit, spoil),
            "image": _smudge(rng, pictures[pick], spoil),
            "audio": (dial(rng, digit, spoil), RATE),
        }
        gone = [name for name in rng.permutation(list(views)) if rng.random() < missing]
        for name in gone[: len(views) - 1]:
            views[name] = None
        for name, value in {**views, "target": str(digit)}.items():
            cells[name].append(value)
    return Rows(cells, [f"digits row {i + 1}" for i in range(count)])


def dial(rng: np.random.Generator, digit: int, spoil: float = 1.0) -> np.ndarray:
    """float32 (T,) at 8,000 Hz: a key's two tones (ITU-T Q.23), of random length and level, in noise."""
    row = next(i for i, keys in enumerate(KEYS) if str(digit) in keys)
    column = KEYS[row].index(str(digit))
    time = np.arange(rng.integers(480, 1600)) / RATE
    tone = sum(np.sin(2 * np.pi * (f * time + rng.random())) for f in (LOW[row], HIGH[column]))
    level = rng.uniform(0.15, 0.5)
    before, after = rng.integers(0, 800, 2)
    sound = np.concatenate([np.zeros(before), level * tone, np.zeros(after)])
    noise = spoil * level * 10 ** rng.uniform(0.35, 1.05)
    loud = sound + noise * rng.standard_normal(len(sound))
    return (0.05 * loud).clip(-1, 1).astype(np.float32)


def _smudge(rng: np.random.Generator, picture: np.ndarray, spoil: float) -> np.ndarray:
    """uint8 (8, 8): low contrast, noise and a blot of three cells each way."""
    picture = picture * (1 - rng.uniform(0.3, 0.6) * min(spoil, 1.0)) + 0.12 * spoil * rng.standard_normal((8, 8))
    if spoil:
        top, left = rng.integers(0, 6, 2)
        picture[top : top + 3, left : left + 3] = rng.random()
    return (picture.clip(0, 1) * 255).astype(np.uint8)


def _spell(rng: np.random.Generator, digit: int, spoil: float) -> str:
    word = WORDS[str(rng.choice(list(WORDS)))].split()[digit]
    for _ in range(rng.poisson(spoil * 0.55 * len(word))):
        word = _mistype(rng, word)
    return word


def _mistype(rng: np.random.Generator, word: str) -> str:
    """One letter dropped, doubled, swapped with the next or another one; a word never becomes empty."""
    at = int(rng.integers(len(word)))
    kind = rng.integers(4)
    if kind == 0 and len(word) > 1:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at] + word[at:]
    if kind == 2 and at + 1 < len(word):
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + str(rng.choice(list(ALPHABET))) + word[at + 1 :]
