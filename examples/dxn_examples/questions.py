"""Synthetic data for question answering: texts about invented people, and questions about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from dxn.core.errors import UserError
from dxn.data.rows import InputSpec, Rows, Source
from dxn.datasets.checks import check_counts

UNANSWERABLE = 0.2  # share of the questions without an answer
FIRST = (
    *("Ada", "Bruno", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas"),
    *("Keiko", "Luis", "Mara", "Nils", "Olga", "Pavel", "Rosa", "Samir", "Tara", "Ugo"),
    *("Vera", "Wanda", "Xenia", "Yusuf", "Zoe"),
)
LAST = ("Moreno", "Lind", "Okafor", "Weber", "Rossi", "Tanaka", "Silva", "Novak", "Dubois", "Khan")


@dataclass(frozen=True)
class Relation:
    """A kind of facts about a person P and a value V.

    Args:
        facts: Sentences that state a fact.
        asked: Questions for the value.
        inverse: Questions for the person.
        values: Possible values.
    """

    facts: Sequence[str]
    asked: Sequence[str]
    inverse: Sequence[str]
    values: Sequence[str]


RELATIONS = (
    Relation(
        ("P lives in V .", "The home of P is in V .", "V is the town where P lives ."),
        ("Where does P live ?", "In which town does P live ?"),
        ("Who lives in V ?",),
        ("New York", "Lima", "San Jose", "Oslo", "Cape Town", "Kyoto", "Porto", "Ghent", "Quito"),
    ),
    Relation(
        ("P works as a V .", "P has been a V for years .", "As a V , P travels a lot ."),
        ("What is the job of P ?", "What does P work as ?"),
        ("Who works as a V ?", "Who is a V ?"),
        (
            *("nurse", "pilot", "history teacher", "civil engineer", "baker", "tour guide"),
            *("judge", "tax lawyer", "gardener"),
        ),
    ),
    Relation(
        ("P plays the V .", "Every evening P practices the V ."),
        ("Which instrument does P play ?", "What does P practice ?"),
        ("Who plays the V ?",),
        ("violin", "grand piano", "bass guitar", "flute", "drums", "harp", "cello", "tin whistle"),
    ),
    Relation(
        ("P was born in V .", "The year of birth of P is V ."),
        ("When was P born ?", "In which year was P born ?"),
        ("Who was born in V ?",),
        tuple(f"{month} {year}" for month in ("May", "June", "July") for year in range(1970, 1976)),
    ),
    Relation(
        ("P owns a V .", "A V belongs to P .", "Last week P bought a V ."),
        ("What does P own ?", "What belongs to P ?"),
        ("Who owns a V ?", "To whom does a V belong ?"),
        (
            *("red bicycle", "blue car", "sailing boat", "black horse", "green tent", "telescope"),
            *("white piano stool", "drone"),
        ),
    ),
    Relation(
        ("P loves V .", "The favorite food of P is V ."),
        ("What is the favorite food of P ?", "Which food does P love ?"),
        ("Who loves V ?",),
        ("apple pie", "fried rice", "ramen", "lentil soup", "pizza", "blue cheese", "dark bread"),
    ),
)


def questions(
    *,
    num_train: int = 20000,
    num_validation: int = 500,
    num_test: int = 500,
    num_facts: int = 8,
    seed: int = 0,
) -> Source:
    """Generate texts with facts about several people, and a question about each text.

    The answer is a value, such as "New York", or the name of a person. A question without an answer
    asks for something that the text says about other people only.

    Args:
        num_train: Number of training questions.
        num_validation: Number of validation questions.
        num_test: Number of test questions.
        num_facts: Number of sentences of a text. With 60, a text has about 440 words, which do not
            fit into one window.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no question, or a number is out of range.
    """
    counts = check_counts(num_train, num_validation, num_test)
    if not 2 <= num_facts <= 100:
        raise UserError(f"data.num_facts: must be from 2 to 100, got {num_facts}")
    splits: dict[str, Rows] = {}
    for name, count in counts.items():
        rand = Random(f"{seed}/{name}")
        rows = [_row(rand, num_facts, rand.random() < UNANSWERABLE) for _ in range(count)]
        asked, contexts, answers = map(list, zip(*rows, strict=True))
        cells = {"question": asked, "context": contexts, "target": answers}
        splits[name] = Rows(cells, [f"questions {name} row {i + 1}" for i in range(count)])
    return Source(
        splits,
        {"question": InputSpec("question", "text"), "context": InputSpec("context", "text")},
        target="answer",
        task="span",
        name="questions",
        notes=["synthetic data: the texts of all splits are different"],
    )


def _row(rand: Random, num_facts: int, is_none: bool) -> tuple[str, str, dict[str, list[Any]]]:
    """Return a question, a text, and the answer with its position as in SQuAD."""
    people = [f"{first} {rand.choice(LAST)}" for first in rand.sample(FIRST, len(FIRST))]
    # A person has at most one value of a relation, and a value belongs to one person.
    free = [(relation, person) for relation in RELATIONS for person in people]
    values = {r: rand.sample(r.values, len(r.values)) for r in RELATIONS}
    people_used = people[: max(2, num_facts // 2)]
    rand.shuffle(free)
    facts: list[tuple[Relation, str, str]] = []
    for relation, person in free:
        if person in people_used and values[relation] and len(facts) < num_facts:
            facts.append((relation, person, values[relation].pop()))
    sentences: list[str] = []
    starts: list[dict[str, int]] = []
    length = 0
    for relation, person, value in facts:
        template = rand.choice(relation.facts)
        sentence = _filled(template, person, value)
        starts.append({key: length + _start(template, key, person, value) for key in "PV"})
        sentences.append(sentence)
        length += len(sentence) + 1
    text = " ".join(sentences)
    chosen = rand.randrange(len(facts))
    relation, person, value = facts[chosen]
    is_inverse = rand.random() < 0.3
    if is_none:
        known = {(r, p) for r, p, _ in facts}
        others = [p for p in people_used if (relation, p) not in known]
        if is_inverse and values[relation]:
            value = values[relation][0]
        else:
            is_inverse = False
            person = rand.choice(others or people[len(people_used) :])
    template = rand.choice(relation.inverse if is_inverse else relation.asked)
    # Usually the first name is enough.
    named = person if rand.random() < 0.3 else person.split()[0]
    question = _filled(template, named, value)
    if is_none:
        return question, text, {"text": [], "answer_start": []}
    answer, key = (person, "P") if is_inverse else (value, "V")
    return question, text, {"text": [answer], "answer_start": [starts[chosen][key]]}


def _filled(template: str, person: str, value: str) -> str:
    """Return a sentence about a person and a value, without spaces before punctuation."""
    words = [{"P": person, "V": value}.get(word, word) for word in template.split()]
    return " ".join(words).replace(" .", ".").replace(" ?", "?").replace(" ,", ",")


def _start(template: str, key: str, person: str, value: str) -> int:
    """Return the position of the person ("P") or of the value ("V") in the sentence."""
    before = template.split()[: template.split().index(key)]
    text = _filled(" ".join([*before, key]), person, value)
    return len(text) - len({"P": person, "V": value}[key])
