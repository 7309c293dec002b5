"""Synthetic multimodal data: each row has an image, the audio and the spelling of one digit."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from importlib.metadata import distribution
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.formats import SPLITS
from dxn.data.rows import TARGET, InputSpec, Rows, Source
from dxn.datasets.checks import check_corrupt, check_counts

SAMPLE_RATE = 8000  # Hz, as on a telephone line
# Frequencies in Hz of the two tones of a key, by row and column of the keypad (ITU-T Q.23).
LOW_TONES = (697, 770, 852, 941)
HIGH_TONES = (1209, 1336, 1477)
TIME = np.arange(1600) / SAMPLE_RATE  # seconds
KEYS = ("123", "456", "789", "*0#")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"

# scikit-learn has 1,797 images. In random order, the first 1,300 are for training, the next 100 for
# validation, and the others for the test split, so that no image is in two splits.
LAST_TRAIN, LAST_VALIDATION = 1300, 1400

# The words for the digits 0 to 9 in each language.
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
    corrupt: float = 1.0,
    missing: float = 0.0,
    seed: int = 0,
) -> Source:
    """Generate a data set with three inputs per digit: an image, audio and text.

    Each input is corrupted, so that a model needs several inputs to classify most digits. "image"
    is a handwritten digit, uint8 (8, 8). "audio" is the dial tone of the digit, float32 (T,), with
    its sample rate of 8,000 Hz. "text" is the digit spelled in one of thirty languages.

    Args:
        num_train: Number of training rows.
        num_validation: Number of validation rows.
        num_test: Number of test rows.
        corrupt: Strength of noise, occlusion and typing errors. 0: no corruption.
        missing: Probability that an input of a row is missing. Each row has at least one input.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no row, or `corrupt` or `missing` is out of range.
    """
    counts = check_counts(num_train, num_validation, num_test)
    check_corrupt(corrupt)
    if not 0 <= missing < 1:
        raise UserError(f"data.missing: must be in [0, 1), got {missing}")
    rng = np.random.default_rng(seed)
    flat, digit_labels = load_digits()
    images = np.asarray(flat).reshape(-1, 8, 8) / 16  # pixels are integers from 0 to 16
    labels = np.asarray(digit_labels)
    order = rng.permutation(len(labels))
    pools = np.split(order, [LAST_TRAIN, LAST_VALIDATION])
    splits: dict[str, Rows] = {}
    for name, pool in zip(SPLITS, pools, strict=True):
        splits[name] = _rows(
            rng, images[pool], labels[pool], counts[name], corrupt=corrupt, missing=missing
        )
    inputs = {
        "text": InputSpec("spelled", "text"),
        "image": InputSpec("handwritten", "image"),
        "audio": InputSpec("dialled", "audio"),
    }
    notes = ["synthetic data: each input is corrupted, so that a model needs several inputs"]
    return Source(splits, inputs, target="digit", task="classify", notes=notes)


def dial(rng: np.random.Generator, digit: int, corrupt: float = 1.0) -> np.ndarray:
    """Generate the audio of one key: two tones of random length and level with added noise.

    Returns:
        Waveform (T,), float32, at 8,000 Hz.
    """
    # In place, because this is most of the time that the data set takes.
    time = TIME[: rng.integers(480, 1600)]  # 60 to 200 ms
    tones = np.multiply.outer(key_tones(str(digit)), time)
    for wave in tones:
        wave += rng.random()  # phase
    tones *= 2 * np.pi
    np.sin(tones, out=tones)
    level = rng.uniform(0.15, 0.5)
    before = rng.integers(800)
    after = rng.integers(800)
    # The standard deviation of the noise is 2.2 to 11 times the amplitude of a tone.
    noise = corrupt * level * 10 ** rng.uniform(0.35, 1.05)
    sound = rng.standard_normal(before + len(time) + after)
    sound *= noise
    sound[before : before + len(time)] += level * (tones[0] + tones[1])
    # The factor 0.05 keeps the loudest noise within -1 to 1, with rare exceptions that are clipped.
    sound *= 0.05
    return sound.astype(np.float32).clip(-1, 1)


def key_tones(digit: str) -> tuple[int, int]:
    """Return the frequencies of the low and the high tone of a key in Hz."""
    row = next(i for i, keys in enumerate(KEYS) if digit in keys)
    return LOW_TONES[row], HIGH_TONES[KEYS[row].index(digit)]


def _rows(
    rng: np.random.Generator,
    images: np.ndarray,
    labels: np.ndarray,
    count: int,
    *,
    corrupt: float,
    missing: float,
) -> Rows:
    """Generate `count` rows from images (n, 8, 8) and their labels (n,).

    If there are more rows than images, images are repeated with other corruptions.
    """
    # Every image is used once before any is repeated.
    num_rounds = math.ceil(count / len(labels))
    picks = np.concatenate([rng.permutation(len(labels)) for _ in range(num_rounds)])[:count]
    languages = [words.split() for words in WORDS.values()]
    names = ("text", "image", "audio")
    cells: dict[str, list[Any]] = {name: [] for name in names}
    cells[TARGET] = [str(digit) for digit in labels[picks]]
    dropped: list[list[str]] = []
    for pick in picks:
        digit = int(labels[pick])
        cells["text"].append(_spell(rng, languages, digit, corrupt))
        cells["image"].append(_corrupt_image(rng, images[pick], corrupt))
        cells["audio"].append((dial(rng, digit, corrupt), SAMPLE_RATE))
        # The random order decides which input is kept if all three would be missing.
        order, rand = rng.permutation(len(names)), rng.random(len(names))
        dropped.append([names[i] for i in order[rand < missing]][: len(names) - 1])
    # Once for all, which takes less time than for each of them.
    cells["image"] = list((np.stack(cells["image"]).clip(0, 1) * 255).astype(np.uint8))
    for row, inputs in enumerate(dropped):
        for name in inputs:
            cells[name][row] = None
    return Rows(cells, [f"digits row {i + 1}" for i in range(count)])


def _corrupt_image(rng: np.random.Generator, image: np.ndarray, corrupt: float) -> np.ndarray:
    """Reduce the contrast, add noise, and erase a square of 3 by 3 pixels.

    Args:
        rng: Random generator.
        image: Image (8, 8) with values from 0 to 1.
        corrupt: Strength of the corruption.

    Returns:
        Image (8, 8), float64, with some values below 0 and above 1.
    """
    contrast = 1 - rng.uniform(0.3, 0.6) * min(corrupt, 1.0)
    image = image * contrast + 0.12 * corrupt * rng.standard_normal((8, 8))
    if corrupt:
        # Two single numbers take less time than an array of two.
        top, left = rng.integers(6), rng.integers(6)
        image[top : top + 3, left : left + 3] = rng.random()
    return image


def _spell(
    rng: np.random.Generator, languages: Sequence[Sequence[str]], digit: int, corrupt: float
) -> str:
    """Spell the digit in a random language, with typing errors in about half of the letters."""
    word = languages[int(rng.integers(len(languages)))][digit]
    for _ in range(rng.poisson(corrupt * 0.55 * len(word))):
        word = _mistype(rng, word)
    return word


def _mistype(rng: np.random.Generator, word: str) -> str:
    """Delete, double, swap or replace a random letter. The result is never empty."""
    at = int(rng.integers(len(word)))
    kind = rng.integers(4)
    if kind == 0 and len(word) > 1:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at] + word[at:]
    if kind == 2 and at + 1 < len(word):
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + ALPHABET[int(rng.integers(len(ALPHABET)))] + word[at + 1 :]


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images (1797, 64) and labels (1797,) that scikit-learn contains.

    They equal those of `sklearn.datasets.load_digits`, which takes as long to import as torch.
    """
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    with gzip.open(str(path), "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)
