"""Tables of the instruct domain: 15 classification tasks in three orders."""

from dataclasses import replace

from sphere_replay.runs.table import Columns, Measure, Row, Table, Unit, by_cell

_ER = Row("ER", "er", "uniform")
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
_MEMORIES: Columns = {
    "K = 300": {"capacity": 300},
    "K = 3000": {"capacity": 3000},
}


def _instruct(
    name: str,
    title: str,
    rows: tuple[Row, ...],
    columns: Columns,
    measures: tuple[Measure, ...],
    published: dict[tuple[str, str], str],
    unit: Unit = Unit.FRACTION,
) -> Table:
    """A table of the 15 classification tasks, or of generated ones if nothing was published.

    Published values are by row and column, as printed.
    """
    return Table(
        name,
        title,
        "instruct-tiny",
        rows,
        columns,
        measures,
        unit=unit,
        published=by_cell(measures, published),
        settings={"corpus": "classification"} if published else {},
        orders=3,
        paper_preset="instruct-t5-large",
    )


INSTRUCT_TABLES = (
    _instruct(
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
    _instruct(
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
    _instruct(
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
    _instruct(
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
    _instruct(
        "instruct-noisy",
        "Instruction tuning on 8 generated tasks, some answers wrong, K = 64",
        (_ER, _MIR_PROP, _SPHERE, Row("SPHERE, calibrated", "er", "sphere-calibrated", "ER")),
        {f"{100 * rate:g}%": {"noise": rate} for rate in (0.2, 0.4)},
        _RETENTION[:2],
        {},
    ),
    replace(
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
            "tests_per_task": 20,
        },
        orders=None,
    ),
)
