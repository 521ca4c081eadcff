"""The tables that can be run and printed: which runs they need, and what the paper printed."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sphere_replay.experiments.collection import Cell
from sphere_replay.experiments.domains import resolve
from sphere_replay.experiments.tables import Measure, Published, TableSpec, Unit

EVALUATION_SEEDS = range(1000)
"""Seeds of reported numbers, used from the first on."""
DEVELOPMENT_SEEDS = range(1000, 2000)
"""Seeds for every choice; no reported number ever comes from them."""


@dataclass(frozen=True)
class Row:
    """A method of a table and how to run it."""

    method: str
    host: str
    select: str
    baseline: str | None = None


@dataclass(frozen=True)
class Table:
    """A table: its rows and columns as runs of a preset."""

    spec: TableSpec
    preset: str
    rows: tuple[Row, ...]
    columns: dict[str, dict[str, Any]]
    """Column names with the settings they stand for."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What every run of the table has beyond its preset."""
    orders: int | None = None
    """Of the tasks, if there are several: a run is then an (order, seed) pair."""

    def with_preset(self, preset: str) -> "Table":
        """The same rows and columns at another scale."""
        return replace(self, preset=preset)

    def cells(
        self,
        seeds: Iterable[int],
        methods: Iterable[str] | None = None,
        columns: Iterable[str] | None = None,
        **settings: Any,
    ) -> list[Cell]:
        """Runs of the table (or of some rows and columns), seed by seed: any part is balanced."""
        methods = set(self.spec.methods if methods is None else methods)
        columns = set(self.columns if columns is None else columns)
        return [
            Cell(
                row.method,
                column,
                resolve(
                    self.preset,
                    host=row.host,
                    select=row.select,
                    **(self._run(number) | self.settings | chosen | settings),
                ),
            )
            for number in seeds
            for row in self.rows
            if row.method in methods
            for column, chosen in self.columns.items()
            if column in columns
        ]

    def _run(self, number: int) -> dict[str, Any]:
        """The settings of a run by its number, which is its seed or counts (order, seed) pairs."""
        if self.orders is None:
            return {"seed": number}
        first = DEVELOPMENT_SEEDS.start if number in DEVELOPMENT_SEEDS else EVALUATION_SEEDS.start
        seed, order = divmod(number - first, self.orders)
        return {"order": str(order), "seed": first + seed}


def _noise(*rates: float) -> dict[str, dict[str, Any]]:
    return {"Clean" if rate == 0 else f"{100 * rate:g}%": {"noise": rate} for rate in rates}


def _published(
    columns: Iterable[str], metric: str, rows: dict[str, str]
) -> dict[tuple[str, str, str], Published]:
    """Published values from text as printed: "87.3 0.8 65.3 4.0 ..." (mean and SD per column)."""
    values = {}
    for method, text in rows.items():
        numbers = [float(number) for number in text.split()]
        for column, mean, sd in zip(columns, numbers[::2], numbers[1::2], strict=True):
            values[method, column, metric] = Published(mean, sd)
    return values


def _table(
    name: str,
    title: str,
    preset: str,
    rows: tuple[Row, ...],
    columns: dict[str, dict[str, Any]],
    published: dict[str, str] | None = None,
) -> Table:
    spec = TableSpec(
        name=name,
        title=title,
        methods={row.method: row.baseline for row in rows},
        columns=tuple(columns),
        measures=(Measure("class_il"),),
        published=_published(columns, "class_il", published or {}),
    )
    return Table(spec, preset, rows, columns)


_ER = Row("ER", "er", "uniform")
_ER_SPHERE = Row("ER + SPHERE", "er", "sphere", "ER")
_ER_MIR = Row("MIR", "er", "mir", "ER")
_DER = Row("DER++", "der-pp", "uniform")
_ACE = Row("ER-ACE", "er-ace", "uniform")
_ACE_SPHERE = Row("ER-ACE + SPHERE", "er-ace", "sphere", "ER-ACE")

_NO_REPLAY = Row("No replay", "none", "uniform", "ER")
_LOSS = Row("Loss-prop", "er", "loss", "ER")
_MIR_PROP = Row("MIR-prop", "er", "mir", "ER")
_MIR_TOP = Row("MIR-top", "er", "mir-top", "ER")
_SPHERE = Row("SPHERE", "er", "sphere", "ER")
_FULL = Row("Full SPHERE", "er", "sphere")
_CONTROLS = tuple(
    Row(method, "er", select, "Full SPHERE")
    for method, select in {
        "Consensus only": "sphere-consensus",
        "No transport": "sphere-no-transport",
        "Permuted geometry": "sphere-permuted",
        "Matched MIR": "mir-matched",
        "No uniform floor": "sphere-no-floor",
    }.items()
)

_RETENTION = (
    Measure("final_accuracy"),
    Measure("worst_forgetting"),
    Measure("tail_forgetting"),
    Measure("final_accuracy", "min"),
)
_NEIGHBORHOOD = tuple(
    Measure(name)
    for name in (
        "final_accuracy",
        "incremental_accuracy",
        "new_task_accuracy",
        "mean_forgetting",
        "worst_forgetting",
        "tail_forgetting",
    )
)
_MEMORIES: dict[str, dict[str, Any]] = {
    "K = 300": {"capacity": 300},
    "K = 3000": {"capacity": 3000},
}


def _instruct(
    name: str,
    title: str,
    rows: tuple[Row, ...],
    columns: dict[str, dict[str, Any]],
    measures: tuple[Measure, ...],
    published: dict[tuple[str, str], str],
    unit: Unit = Unit.FRACTION,
) -> Table:
    """A table of the 15 classification tasks, or of generated ones if nothing was published.

    Published values by row and column are in the order of the measures: "mean/SD", or a mean alone.
    """
    values = {}
    for (method, column), text in published.items():
        for measure, value in zip(measures, text.split(), strict=True):
            mean, _, sd = value.partition("/")
            values[method, column, measure.name] = Published(float(mean), float(sd) if sd else None)
    spec = TableSpec(
        name=name,
        title=title,
        methods={row.method: row.baseline for row in rows},
        columns=tuple(columns),
        measures=measures,
        unit=unit,
        published=values,
    )
    settings = {"corpus": "classification"} if published else {}
    return Table(spec, "instruct-tiny", rows, columns, settings, orders=3)


TABLES: dict[str, Table] = {
    "digits": _table(
        "digits",
        "Split digits, Class-IL accuracy (%)",
        "digits",
        (_ER, _ER_MIR, _ER_SPHERE, _ACE, _ACE_SPHERE),
        _noise(0.0, 0.4),
    ),
    "mnist": _table(
        "mnist",
        "Split MNIST, Class-IL accuracy (%), K = 500",
        "mnist",
        (_ER, _ER_SPHERE, _ER_MIR, _DER, _ACE, _ACE_SPHERE),
        _noise(0.0, 0.2, 0.4, 0.6, 0.8),
        {
            "ER": "87.3 0.8 65.3 4.0 46.9 5.4 31.3 5.8 19.2 2.9",
            "ER + SPHERE": "86.3 1.1 70.8 6.7 54.1 4.9 31.5 5.5 19.7 3.1",
            "MIR": "88.2 0.6 61.6 6.6 45.7 5.0 31.5 5.5 20.6 2.5",
            "DER++": "90.7 0.6 77.5 6.0 62.1 4.6 38.0 3.5 20.7 3.0",
            "ER-ACE": "88.8 1.1 75.7 9.4 66.2 2.8 43.7 2.9 21.3 2.8",
            "ER-ACE + SPHERE": "89.2 0.4 81.6 3.8 69.8 3.2 45.8 4.5 21.3 2.1",
        },
    ),
    "instruct": _instruct(
        "instruct",
        "Instruction tuning on 15 tasks, by memory size",
        (_NO_REPLAY, _ER, _LOSS, _MIR_PROP, _MIR_TOP, _SPHERE),
        _MEMORIES,
        _RETENTION,
        {
            ("No replay", "K = 300"): ".415/.146 .811/.156 .693/.173 .130",
            ("ER", "K = 300"): ".661/.075 .245/.149 .200/.137 .423",
            ("Loss-prop", "K = 300"): ".689/.045 .188/.061 .142/.043 .538",
            ("MIR-prop", "K = 300"): ".675/.045 .188/.083 .152/.072 .570",
            ("MIR-top", "K = 300"): ".621/.023 .244/.055 .211/.060 .588",
            ("SPHERE", "K = 300"): ".690/.021 .180/.053 .143/.035 .661",
            ("No replay", "K = 3000"): ".415/.146 .811/.156 .693/.173 .130",
            ("ER", "K = 3000"): ".641/.071 .329/.143 .269/.112 .479",
            ("Loss-prop", "K = 3000"): ".618/.050 .325/.085 .269/.076 .502",
            ("MIR-prop", "K = 3000"): ".635/.042 .296/.111 .237/.079 .561",
            ("MIR-top", "K = 3000"): ".633/.066 .375/.205 .285/.155 .500",
            ("SPHERE", "K = 3000"): ".658/.028 .291/.093 .228/.067 .619",
        },
    ),
    "instruct-ablation": _instruct(
        "instruct-ablation",
        "Instruction tuning: component controls, K = 300",
        (_FULL, *_CONTROLS),
        {"K = 300": {"capacity": 300}},
        _RETENTION,
        {
            ("Full SPHERE", "K = 300"): ".690/.021 .180/.053 .143/.035 .661",
            ("Consensus only", "K = 300"): ".680/.021 .189/.054 .154/.030 .647",
            ("No transport", "K = 300"): ".640/.063 .275/.129 .227/.110 .478",
            ("Permuted geometry", "K = 300"): ".666/.056 .213/.082 .188/.078 .497",
            ("Matched MIR", "K = 300"): ".682/.048 .192/.113 .161/.087 .517",
            ("No uniform floor", "K = 300"): ".673/.034 .230/.082 .183/.063 .608",
        },
    ),
    "instruct-neighborhood": _instruct(
        "instruct-neighborhood",
        "Instruction tuning: neighborhood-block ablation (%), K = 300",
        (Row("S = I", "er", "sphere-identity"), Row("SPHERE", "er", "sphere", "S = I")),
        {"K = 300": {"capacity": 300}},
        _NEIGHBORHOOD,
        {
            ("S = I", "K = 300"): "64.90 66.08 70.34 8.88 24.75 20.59",
            ("SPHERE", "K = 300"): "69.32 68.54 72.43 6.18 16.85 13.54",
        },
        Unit.PERCENT,
    ),
    "instruct-generated": _instruct(
        "instruct-generated",
        "Instruction tuning on 8 generated tasks, K = 64",
        (
            *(_NO_REPLAY, _ER, _LOSS, _MIR_PROP, _MIR_TOP, _SPHERE),
            Row("S = I", "er", "sphere-identity", "SPHERE"),
            *(replace(row, baseline="SPHERE") for row in _CONTROLS),
        ),
        {"K = 64": {}},
        _RETENTION,
        {},
    ),
    "instruct-smollm2": replace(
        _instruct(
            "instruct-smollm2",
            "SmolLM2-135M on 3 of the 15 tasks, 12 updates, K = 48",
            (_NO_REPLAY, _ER, _SPHERE),
            {"K = 48": {"capacity": 48}},
            _RETENTION,
            {},
        ),
        preset="instruct-smollm2",
        settings={
            "order": "agnews,sst2,dbpedia",
            "pool": 32,
            "max_source": 64,
            "tests_per_task": 20,
        },
        orders=None,
    ),
}
