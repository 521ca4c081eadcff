"""Answers as words: when two count as the same."""

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """Lower case, without punctuation, single spaces: the form in which answers are compared."""
    return re.sub(r"\s+", " ", answer.lower().translate(_PUNCTUATION)).strip()


def exact_match(answer: str, label: str) -> bool:
    """Whether an answer is the label, up to case, punctuation and white space."""
    return normalize(answer) == normalize(label)
