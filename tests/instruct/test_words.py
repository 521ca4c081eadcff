"""When an answer counts as the label."""

import pytest

from sphere_replay.instruct.encoding import exact_match, normalize


@pytest.mark.parametrize(
    ("answer", "label", "same"),
    [
        ("Good", "good", True),
        ("  very   negative.\n", "Very negative", True),
        ("Society  Culture", "Society & Culture", True),
        ("negative", "very negative", False),
        ("", "A", False),
        ("A B", "AB", False),
    ],
)
def test_case_punctuation_and_white_space_do_not_count(answer: str, label: str, same: bool) -> None:
    assert exact_match(answer, label) is same


def test_normalizing_twice_changes_nothing() -> None:
    text = "  Science &  Mathematics -- (or) Not?! "
    assert normalize(normalize(text)) == normalize(text) == "science mathematics or not"
