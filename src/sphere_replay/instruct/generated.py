"""A generated corpus: eight small tasks that share words and labels, for runs without downloads.

The tasks are easy one by one and get in each other's way in sequence: `True` and `False` answer
two different questions, the same words are `Good` or `Bad` for one task and positive or negative
for another, and four tasks sort the same nouns by different criteria. What a learner forgets is
thus which question was asked, as with real instructions.
"""

import random
from collections.abc import Callable

from sphere_replay.instruct.tasks import Corpus, Example, Task

TRAIN_SIZE, TEST_SIZE = 1200, 300
_SEED = 0

_NOUNS: dict[str, dict[str, tuple[str, ...]]] = {
    # topic -> kind -> words; each kind is found in one place, see _PLACES
    "nature": {
        "animal": ("otter", "falcon", "badger", "heron", "lynx", "beetle"),
        "plant": ("birch", "clover", "fern", "willow", "thistle", "moss"),
    },
    "music": {
        "tool": ("violin", "trumpet", "drum", "flute", "cello", "harp"),
        "person": ("singer", "pianist", "composer", "conductor", "dancer", "poet"),
    },
    "food": {
        "dish": ("soup", "bread", "curry", "salad", "pie", "stew"),
        "tool": ("kettle", "spoon", "oven", "knife", "pan", "ladle"),
    },
    "sport": {
        "person": ("goalkeeper", "runner", "boxer", "swimmer", "coach", "referee"),
        "tool": ("racket", "ball", "helmet", "paddle", "bat", "puck"),
    },
}
_PLACES = {"nature": "outside", "music": "inside", "food": "inside", "sport": "outside"}
_GOOD = ("lovely", "superb", "charming", "brilliant", "delightful", "splendid")
_BAD = ("awful", "dreadful", "boring", "horrible", "clumsy", "dull")
_PLAIN = ("ordinary", "average", "usual", "plain", "common", "typical")
_FILLERS = ("today", "again", "in town", "last week", "with friends", "at noon", "as planned")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
            "eleven", "twelve")  # fmt: skip

Maker = Callable[[random.Random], tuple[str, str]]
"""Draws a sentence and its label."""


def generated_corpus(train: int = TRAIN_SIZE, test: int = TEST_SIZE) -> Corpus:
    """All eight tasks, the same on every machine.

    Test sentences come from draws of their own; the shortest ones recur in training.
    """
    drawn: list[tuple[str, str, str, tuple[str, ...], Maker]] = [
        ("topic", "TC", "Which topic?", tuple(_NOUNS), _topic),
        ("kind", "TC", "Which kind of thing?",
         ("animal", "plant", "tool", "person", "dish"), _kind),
        ("place", "TC", "Which place?", ("inside", "outside"), _place),
        ("alive", "QA", "Is it alive?", ("True", "False"), _alive),
        ("review", "SC", "Which verdict?", ("Good", "Bad"), _review),
        ("stars", "SC", "Which sentiment?", ("negative", "neutral", "positive"), _stars),
        ("parity", "NUM", "Even or odd?", ("even", "odd"), _parity),
        ("order", "NUM", "Is the first smaller?", ("True", "False"), _order),
    ]  # fmt: skip
    tasks = {}
    for name, family, instruction, labels, draw in drawn:
        splits = (_examples(draw, f"{name} train", train), _examples(draw, f"{name} test", test))
        tasks[name] = Task(name, family, instruction, labels, *splits)
    return Corpus("generated", tasks)


def _examples(draw: Maker, purpose: str, count: int) -> tuple[Example, ...]:
    choose = random.Random(f"{_SEED} {purpose}")
    return tuple(Example(*draw(choose)) for _ in range(count))


def _nouns(choose: random.Random, topic: str, kind: str | None = None) -> str:
    """Three nouns of a topic, and of one kind if it is given."""
    words = [word for name in _NOUNS[topic] if kind in (None, name) for word in _NOUNS[topic][name]]
    first, second, third = choose.sample(words, 3)
    return f"the {first}, the {second} and the {third}"


def _topic(choose: random.Random) -> tuple[str, str]:
    topic = choose.choice(list(_NOUNS))
    return f"{_nouns(choose, topic)} {choose.choice(_FILLERS)}", topic


def _kind(choose: random.Random) -> tuple[str, str]:
    kind = choose.choice([kind for kinds in _NOUNS.values() for kind in kinds])
    topic = choose.choice([topic for topic, kinds in _NOUNS.items() if kind in kinds])
    return f"{_nouns(choose, topic, kind)} {choose.choice(_FILLERS)}", kind


def _place(choose: random.Random) -> tuple[str, str]:
    topic = choose.choice(list(_NOUNS))
    return f"we saw {_nouns(choose, topic)}", _PLACES[topic]


def _alive(choose: random.Random) -> tuple[str, str]:
    text, kind = _kind(choose)
    return text, str(kind in ("animal", "plant", "person"))


def _review(choose: random.Random) -> tuple[str, str]:
    """Negation turns the verdict around."""
    good, negated = choose.random() < 0.5, choose.random() < 0.3
    first, second = choose.sample(_GOOD if good else _BAD, 2)
    noun = choose.choice(_nouns(choose, choose.choice(list(_NOUNS))).split(", "))
    verb = "was not" if negated else "was"
    return f"{noun} {verb} {first} and {second}", "Good" if good != negated else "Bad"


def _stars(choose: random.Random) -> tuple[str, str]:
    label = choose.choice(("negative", "neutral", "positive"))
    words = {"negative": _BAD, "neutral": _PLAIN, "positive": _GOOD}[label]
    first, second = choose.sample(words, 2)
    return f"{first} and {second} {choose.choice(_FILLERS)}", label


def _parity(choose: random.Random) -> tuple[str, str]:
    number = choose.randrange(len(_NUMBERS))
    return f"{_NUMBERS[number]} {choose.choice(_FILLERS)}", ("odd", "even")[number % 2]


def _order(choose: random.Random) -> tuple[str, str]:
    first, second = choose.sample(range(len(_NUMBERS)), 2)
    return f"{_NUMBERS[first]} then {_NUMBERS[second]}", str(first < second)
