"""Styles that keep methods apart and labels that do not collide."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from sphere_replay.reports.figure_parts import HUES, spread_apart, styles_of


def test_sphere_has_the_hue_of_its_host_in_a_darker_tone() -> None:
    styles = styles_of(["ER", "ER + MIR", "ER + SPHERE", "DER++ + SPHERE", "DER++"])
    assert styles["ER"].color == to_rgb(HUES[0])
    assert styles["ER + MIR"].color == to_rgb(HUES[1])
    assert styles["DER++"].color == to_rgb(HUES[2])
    for host in ("ER", "DER++"):
        dark, plain = styles[f"{host} + SPHERE"], styles[host]
        assert (dark.line, plain.line) == ("--", "-")
        assert dark.color == pytest.approx([0.75 * part for part in plain.color])
    by_command = styles_of(["er/uniform", "er/mir", "er/sphere", "der-pp/sphere", "der-pp/uniform"])
    assert list(by_command.values()) == list(styles.values())


def test_styles_of_many_methods_differ() -> None:
    hosts = ["none", "er", "er-ace", "der-pp", "gdumb", "xder", "puridiver", "abs"]
    methods = [f"{host}/{select}" for host in hosts for select in ("uniform", "sphere")]
    methods += [f"er/sphere-{name}" for name in ("identity", "consensus", "permuted", "no-floor")]
    styles = styles_of(methods + methods)
    assert list(styles) == methods
    assert len(set(styles.values())) == len(methods)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.floats(0.1, 20))
def test_labels_are_apart_in_order_and_moved_together(values: list[float], gap: float) -> None:
    placed = spread_apart(values, gap)
    order = sorted(range(len(values)), key=lambda i: values[i])
    for lower, upper in pairwise(order):
        assert placed[upper] - placed[lower] >= gap - 1e-9
    assert sum(placed) == pytest.approx(sum(values), abs=1e-6)


def test_labels_that_do_not_collide_stay_where_they_are() -> None:
    assert spread_apart([50, 10, 12], 5) == pytest.approx([50, 8.5, 13.5])
