"""Independent oracle for SPHERE: the paper's equations as loops; its C, S, T are c, s, t here.

What goes beyond the paper (leaving one out, backing) follows at the end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

EPS_FLOOR = 1e-12
Vec = Sequence[float]
Mat = Sequence[Sequence[float]]
Square = list[list[float]]
Pair = tuple[float, float]
Scales = tuple[float, float, float]  # eps_s, eps_T, T
Blend = tuple[list[float], float, list[float]]  # weights w_bar, mass s_w, probabilities p


@dataclass(frozen=True)
class Allocation:
    """Every quantity of Algorithm 1 (lines 4-8) for one scored set."""

    consensus: list[float]  # S delta
    support: list[float]  # v = [S delta]_+
    plan: Square  # Pi[i][j]: mass from source j to destination i
    target: list[float]  # q*
    sensitivity: list[float]  # w_SC
    weights: list[float]  # w_bar
    mass: float  # s_w
    probabilities: list[float]  # p = w_bar / s_w
    effective_neighbors: list[float]  # N_i^eff
    radius: list[float]  # r_i
    value: float  # V_OT(v)


def mean(values: Vec) -> float:
    """Arithmetic mean, taken about the first value so that a constant list is exact."""
    return values[0] + math.fsum(x - values[0] for x in values) / len(values)


def population_std(values: Vec) -> float:
    """Population standard deviation sqrt(sum (x - mean)^2 / n)."""
    center = mean(values)
    return math.hypot(*[x - center for x in values]) / math.sqrt(len(values))


def percentile(values: Vec, fraction: float) -> float:
    """Linear interpolation between order statistics: 0.5 the median, 0.95 the P_95."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
    return low + (position - math.floor(position)) * (high - low)


def positive_part(values: Vec) -> list[float]:
    """[x]_+ coordinatewise."""
    return [x if x > 0 else 0.0 for x in values]


def normalise(features: Mat) -> Square:
    """h_i / ||h_i||_2; a zero row stays zero."""
    rows = []
    for row in features:
        peak = max((abs(x) for x in row), default=0.0) or 1.0
        norm = math.hypot(*[x / peak for x in row]) or 1.0
        rows.append([x / peak / norm for x in row])
    return rows


def pair_distances(h: Mat) -> Square:
    """||h_i - h_j||_2."""
    return [[math.hypot(*[a - b for a, b in zip(x, y, strict=True)]) for y in h] for x in h]


def neighbour_radius(c: Mat, k: int) -> list[float]:
    """H.3: r_i(k), the k-th smallest C_ij over j != i (k clamped to m-1; 0 when m = 1)."""
    m = len(c)
    if m == 1:
        return [0.0]
    return [sorted(c[i][j] for j in range(m) if j != i)[min(k, m - 1) - 1] for i in range(m)]


def cost_squared(features: Mat) -> Square:
    """H.3 vision: C_ij = ||h_i - h_j||_2^2."""
    return [[d * d for d in row] for row in pair_distances(normalise(features))]


def cost_euclidean(features: Mat) -> Square:
    """H.2 instruct: C_ij = ||h_i - h_j||_2 / nu, nu = median_{k<l} ||h_k - h_l||_2."""
    distance = pair_distances(normalise(features))
    pairs = [distance[k][j] for k in range(len(distance)) for j in range(k + 1, len(distance))]
    positive = [d for d in pairs if d > 0]
    nu = (percentile(pairs, 0.5) or percentile(positive, 0.5)) if positive else 1.0
    return [[d / nu for d in row] for row in distance]


def cost_cosine(features: Mat, d0: float | None, center: bool) -> Square:
    """H.4 code: C_ij = (1 - h_i.h_j) / d0, as ||h_i - h_j||^2 / (2 d0)."""
    h = normalise(features)
    if center:
        middle = [mean([row[c] for row in h]) for c in range(len(h[0]))]
        h = normalise([[x - mu for x, mu in zip(row, middle, strict=True)] for row in h])
    cosine = [[d * d / 2 for d in row] for row in pair_distances(h)]
    if d0 is None:
        d0 = percentile(neighbour_radius(cosine, 8), 0.5) or 1.0
    return [[d / d0 for d in row] for row in cosine]


def smoothing_matrix(c: Mat, eps_s: float) -> Square:
    """Section 4.1: K_ij = exp(-C_ij / eps_s), S_ij = K_ij / sum_k K_ik."""
    kernel = [[math.exp(-cost / max(eps_s, EPS_FLOOR)) for cost in row] for row in c]
    return [[value / math.fsum(row) for value in row] for row in kernel]


def consensus(s: Mat, delta: Vec) -> list[float]:
    """Section 4.1: (S delta)_i = sum_j S_ij delta_j."""
    return [math.fsum(x * y for x, y in zip(row, delta, strict=True)) for row in s]


def pullback(s: Mat, q: Vec, smoothed: Vec) -> list[float]:
    """Eq. transport-pullback: sum_i S_ij q_i 1[smoothed_i > 0] for each j."""
    active = [i for i in range(len(s)) if smoothed[i] > 0]
    return [math.fsum(s[i][j] * q[i] for i in active) for j in range(len(s))]


def neighbourhood(s: Mat, c: Mat) -> tuple[list[float], list[float]]:
    """Section 4.1: r_i = sum_j S_ij C_ij and sum_j S_ij^2 = 1 / N_i^eff."""
    radius = [math.fsum(x * y for x, y in zip(s[i], c[i], strict=True)) for i in range(len(s))]
    return radius, [math.fsum(x * x for x in row) for row in s]


def fixed(eps_s: float, eps_t: float, tau: float) -> Scales:
    """Given scales: T = tau eps_T."""
    return max(eps_s, EPS_FLOOR), max(eps_t, EPS_FLOOR), tau * max(eps_t, EPS_FLOOR)


def neighbour(
    c: Mat, delta: Vec, k_s: int, k_t: int, t_frac: float, ema: float | None, decay: float = 0.9
) -> tuple[float, float, float, float]:
    """Eq. vision-allocation-scales; the fourth value is the new EMA of P_95([delta]_+)."""
    eps_s = max(percentile(neighbour_radius(c, k_s), 0.5), EPS_FLOOR)
    eps_t = max(percentile(neighbour_radius(c, k_t), 0.5), eps_s)
    p95 = percentile(positive_part(delta), 0.95)
    new = p95 if ema is None else decay * ema + (1 - decay) * p95
    return eps_s, eps_t, t_frac * new, new


def spread(c: Mat, delta: Vec, eps_s: float, eps_t: float, c_beta: float) -> Scales:
    """H.2 table: tau = c_beta std([S delta]_+) / eps_T."""
    v = positive_part(consensus(smoothing_matrix(c, eps_s), delta))
    return fixed(eps_s, eps_t, c_beta * population_std(v) / max(eps_t, EPS_FLOOR))


def quantile(c: Mat, delta: Vec, eps_s: float, eps_t: float, fraction: float) -> Scales:
    """H.4: tau = fraction P_95([S delta]_+)."""
    v = positive_part(consensus(smoothing_matrix(c, eps_s), delta))
    return fixed(eps_s, eps_t, fraction * percentile(v, 0.95))


def transport(v: Vec, c: Mat, eps_t: float, t: float) -> tuple[Square, list[float], float]:
    """Eqs. soft-transport-plan and soft-transport-logsumexp, T > 0: (Pi*, q*, V_OT)."""
    m = len(v)
    plan = [[0.0] * m for _ in range(m)]
    logs = []
    for j in range(m):
        # (v_i - tau C_ij) / (tau eps_T), with v taken about max(v) (translation equivariance)
        exponents = [(v[i] - max(v)) / t - c[i][j] / eps_t for i in range(m)]
        terms = [math.exp(x - max(exponents)) for x in exponents]
        for i in range(m):
            plan[i][j] = terms[i] / math.fsum(terms) / m
        logs.append(max(exponents) + math.log(math.fsum(terms) / m))
    return plan, [math.fsum(row) for row in plan], max(v) + t / m * math.fsum(logs)


def objective(pi: Mat, v: Vec, c: Mat, eps_t: float, tau: float) -> float:
    """Eq. soft-transport-allocation, the maximised expression (0 log 0 = 0)."""
    m = len(v)
    gain = [pi[i][j] * (v[i] - tau * c[i][j]) for i in range(m) for j in range(m)]
    entropy = [x * math.log(m * m * x) for row in pi for x in row if x > 0]
    return math.fsum(gain) - tau * eps_t * math.fsum(entropy)


def blend(sensitivity: Vec, alpha: float) -> Blend:
    """Eqs. blended-weight-mass and experimental-sampling: (w_bar, s_w, p)."""
    m = len(sensitivity)
    weights = [(1 - alpha) / m + alpha * w for w in sensitivity]
    if not any(sensitivity):  # the floor alone
        return weights, 1 - alpha, [1 / m] * m
    mass = math.fsum(weights)
    return weights, mass, [w / mass for w in weights]


def allocate_with(s: Mat, c: Mat, delta: Vec, eps_t: float, t: float, alpha: float) -> Allocation:
    """Algorithm 1, lines 5-8, for a given smoothing matrix."""
    m = len(delta)
    smoothed = consensus(s, delta)
    v = positive_part(smoothed)
    if t == 0:  # no transport: all mass stays at its source
        plan = [[1 / m if i == j else 0.0 for j in range(m)] for i in range(m)]
        target, value, sensitivity = [1 / m] * m, max(v), [0.0] * m
    else:
        plan, target, value = transport(v, c, max(eps_t, EPS_FLOOR), t)
        sensitivity = pullback(s, target, smoothed)
    radius, squares = neighbourhood(s, c)
    rest = ([1 / x for x in squares], radius, value)
    return Allocation(smoothed, v, plan, target, sensitivity, *blend(sensitivity, alpha), *rest)


def allocate(c: Mat, delta: Vec, eps_s: float, eps_t: float, t: float, alpha: float) -> Allocation:
    """Algorithm 1, lines 4-8 (control "No uniform floor": alpha = 1)."""
    return allocate_with(smoothing_matrix(c, eps_s), c, delta, eps_t, t, alpha)


def identity(c: Mat, delta: Vec, eps_t: float, t: float, alpha: float) -> Allocation:
    """H.5 "S = I": w_SC = q*([delta]_+) 1[delta > 0]; the pullback by I is no pullback."""
    eye = [[1.0 if i == j else 0.0 for j in range(len(delta))] for i in range(len(delta))]
    return allocate_with(eye, c, delta, eps_t, t, alpha)


def softmax(a: Vec, temperature: float) -> list[float]:
    """H.5: softmax_T(a)_i = exp(a_i / T) / sum_j exp(a_j / T)."""
    terms = [math.exp((x - max(a)) / temperature) for x in a]
    return [term / math.fsum(terms) for term in terms]


def consensus_only(c: Mat, delta: Vec, eps_s: float, temperature: float, alpha: float) -> Blend:
    """H.5 "Consensus only": w_SC = S^T (softmax_T(v) * chi), blended with the floor."""
    s = smoothing_matrix(c, eps_s)
    smoothed = consensus(s, delta)
    return blend(pullback(s, softmax(positive_part(smoothed), temperature), smoothed), alpha)


def no_transport(c: Mat, delta: Vec, eps_s: float, alpha: float) -> Blend:
    """H.5 "No transport": w_SC = N(v) = v / sum(v) (0 if v = 0), blended with the floor."""
    v = positive_part(consensus(smoothing_matrix(c, eps_s), delta))
    return blend([x / (math.fsum(v) or 1.0) for x in v], alpha)


def matched_mir(delta: Vec, temperature: float) -> Blend:
    """H.5 "Matched MIR": softmax_T([delta]_+), mass 1, no floor."""
    p = softmax(positive_part(delta), temperature)
    return p, 1.0, p


def ess(p: Vec) -> float:
    """Effective sample size 1 / sum_i p_i^2."""
    return 1 / math.fsum(x * x for x in p)


def solve_temperature(
    ess_of_temperature: Callable[[float], float], target: float, scale: float = 1.0
) -> float:
    """H.5 ESS matching: bisect log T over scale * [1e-12, 1e12], ESS increasing in T."""
    low, high = math.log(scale) + math.log(1e-12), math.log(scale) + math.log(1e12)
    for _ in range(200):
        middle = (low + high) / 2
        if ess_of_temperature(math.exp(middle)) < target:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def estimation_bounds(s: Mat, c: Mat, l_f: float, sigma: float) -> list[Pair]:
    """Eq. kernel-estimator-bounds: (L_F r_i, L_F^2 r_i^2 + sigma^2 sum_j S_ij^2)."""
    rows = zip(*neighbourhood(s, c), strict=True)
    return [(l_f * r, l_f**2 * r**2 + sigma**2 * x) for r, x in rows]


def transport_noise_bound(s: Mat, c: Mat, l_f: float, sigma: float, zeta0: float = 1.0) -> Pair:
    """Eqs. pipeline-noise-control (zeta0 = 1), pipeline-noise-high-probability: (bias, noise)."""
    radius, squares = neighbourhood(s, c)
    noise = sigma * math.sqrt(2 * math.log(2 * len(s) / zeta0) * max(squares))
    return l_f * max(radius), noise


def transport_noise_bound_temperature(s: Mat, c: Mat, l_f: float, sigma: float, t: float) -> Pair:
    """Eq. pipeline-temperature-refinement: (bias, the smaller of the two noise branches)."""
    bias, noise = transport_noise_bound(s, c, l_f, sigma)
    squares = neighbourhood(s, c)[1]
    return bias, min(noise, sigma**2 * max(squares) / (2 * t) + t * math.log(2))


def regional_mass_bound(m: int, k: int, gap: float, t: float) -> float:
    """Eq. regional-transport-lower-bound."""
    return k / m / (1 + (m - k) / k * math.exp(-gap / t))


def consensus_beats_raw(s: Mat, f: Vec, variances: Vec) -> list[bool]:
    """Eq. exact-consensus-mse: b_i^2 < v_i - sum_j S_ij^2 v_j, b_i = sum_j S_ij (F_j - F_i)."""
    result = []
    for i, row in enumerate(s):
        b = math.fsum(x * (y - f[i]) for x, y in zip(row, f, strict=True))
        noise = math.fsum(x**2 * v for x, v in zip(row, variances, strict=True))
        result.append(b**2 < variances[i] - noise)
    return result


def two_group(k: int, a: float, b: float, d: float, eps_s: float) -> Pair:
    """Appendix D, spike-region contrast: smoothed scores of the spike and of a region member."""
    e = math.exp(-d / eps_s)
    return (b + e * k * a) / (k * (1 + e)), (k * a + e * b) / (k * (1 + e))


def leave_one_out_matrix(c: Mat, eps_s: float) -> Square:
    """S_ij = K_ij / sum_{k != i} K_ik for j != i, S_ii = 0; the identity where that sum is zero."""
    m = len(c)
    rows = []
    for i in range(m):
        row = [math.exp(-c[i][j] / eps_s) if j != i else 0.0 for j in range(m)]
        total = math.fsum(row)
        rows.append([x / total for x in row] if total else [float(i == j) for j in range(m)])
    return rows


def votes(c: Mat, labels: Sequence[int], eps_s: float, balanced: bool) -> list[dict[int, float]]:
    """votes_ic = sum_{j != i} K_ij 1[y_j = c]; balanced: over the share of c among the others."""
    m = len(c)
    rows = []
    for i in range(m):
        cast = {}
        for label in labels:
            voters = [j for j in range(m) if j != i and labels[j] == label]
            cast[label] = math.fsum(math.exp(-c[i][j] / eps_s) for j in voters)
            if balanced and voters:
                cast[label] /= len(voters) / (m - 1)
        rows.append(cast)
    return rows


def backing(c: Mat, labels: Sequence[int], eps_s: float, balanced: bool = False) -> list[float]:
    """backing_i = votes_i,y_i / max_c votes_ic; 1 where nobody votes."""
    rows = zip(votes(c, labels, eps_s, balanced), labels, strict=True)
    return [cast[y] / max(cast.values()) if max(cast.values()) else 1.0 for cast, y in rows]


def label_noise(c: Mat, labels: Sequence[int], eps_s: float, balanced: bool = False) -> float:
    """Share of outvoted labels over its mean if each label is exchanged for all m in turn."""
    outvoted = expected = 0.0
    for cast, y in zip(votes(c, labels, eps_s, balanced), labels, strict=True):
        most = max(cast.values())
        if most > 0:
            outvoted += cast[y] < most * (1 - 1e-6)
            expected += mean([float(cast[other] < most * (1 - 1e-6)) for other in labels])
    return min(1.0, outvoted / expected) if expected else 0.0


def backed(weights: Vec, shares: Vec, a: float) -> Blend:
    """w_i (1 - a + a backing_i), its mass and probabilities (uniform without mass)."""
    scaled = [w * (1 - a + a * x) for w, x in zip(weights, shares, strict=True)]
    mass = math.fsum(scaled)
    return scaled, mass, [w / mass if mass else 1 / len(scaled) for w in scaled]
