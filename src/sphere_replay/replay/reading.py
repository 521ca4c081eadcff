"""What replay does at the moment, as numbers and as a sentence that a person can act on."""

from collections.abc import Mapping
from types import MappingProxyType

from sphere_replay.allocation.certificate import POOR
from sphere_replay.replay.engine import Engine

NEARLY_UNIFORM, NARROW = 0.9, 0.1
"""Shares of the candidates: an effective sample size above the one, or below the other, is said."""
_TOLD = ("drift", "error", "reused", "landmark_neighbors")
"""What the log says of a rescoring, and metrics too."""
WIDE = 0.5
"""A neighbourhood of more than this share of the candidates is none."""
FEW_VOICES = 2.0
"""Landmarks below which hardly an average is left of those that an increment is carried from."""


def metrics_of(engine: Engine) -> dict[str, float | str]:
    """`memory`, `mass`, `ess`, `neighbors` (median N_eff), `share_scored`, `passes`, `seconds`.

    And `summary`, a sentence. `passes` are those of all scorings so far. `drift` is how much of
    what the latest weights say was news, see `weighing.drift`; `error` is the certificate of
    approximate weights; an economical schedule tells `reused` and `landmark_neighbors`. Numbers
    that a selection does not have are left out: uniform replay scores nothing, and after a
    resumption N_eff is known from the next rescoring on.
    """
    size = len(engine.memory)
    values: dict[str, float | str] = {"memory": float(size), "seconds": engine.seconds}
    if not engine.selection.needs_scores:
        return values | {
            "mass": 1.0,
            "ess": float(size),
            "summary": "uniform replay: every memory alike, nothing is scored",
        }
    weighting = engine.weighting
    if weighting is None:
        return values | {"summary": "nothing is scored yet: the next draw does it"}
    ess, mass = weighting.effective_sample_size, weighting.mass
    values |= {
        "mass": mass,
        "ess": ess,
        "share_scored": engine.schedule.scored_share(engine.memory),
    }
    neighbors = None
    if weighting.allocation is not None:
        neighbors = weighting.allocation.typical_neighbors
        values["neighbors"] = neighbors
    values |= {name: weighting.details[name] for name in _TOLD if name in weighting.details}
    scored = len(weighting.weights)
    applied = 1.0 if engine.unit_mass else mass
    summary = reading(ess / scored, applied, neighbors, scored, weighting.details)
    return values | {"passes": float(engine.passes), "summary": summary}


def reading(
    share: float,
    mass: float,
    neighbors: float | None,
    scored: int,
    details: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """The sentence: how far replay is from uniform, how strong, how local and how exact it is."""
    sentence = f"ESS {100 * share:.0f}% of the candidates: "
    if share > NEARLY_UNIFORM:
        sentence += "replay is nearly uniform"
        if mass < NEARLY_UNIFORM:
            sentence += f"; most of the effect is the mass {mass:.2f}"
    elif share < NARROW:
        sentence += "replay repeats few memories; a smaller alpha, or a wider kernel, spreads it"
    else:
        sentence += f"replay prefers some memories, at mass {mass:.2f}"
    if neighbors is not None and neighbors > WIDE * scored:
        sentence += (
            f"; a neighbourhood holds {neighbors:.0f} of {scored} memories, so neighbours are "
            "nearly everybody"
        )
    voices = details.get("landmark_neighbors", FEW_VOICES)
    if voices < FEW_VOICES:
        sentence += (
            f"; increments come from {voices:.1f} landmarks each: more of them, or a wider kernel, "
            "would make them surer"
        )
    error = details.get("error", 0.0)
    if error > POOR:
        sentence += f"; kernels are approximate, and up to {error:.0%} of the draws may be others"
    return sentence
