// The results of an experiment, card by card: gains first, then everything that stands behind them.
"use strict";

function resultsView(experiments, key, open) {
  const experiment =
    experiments.find((each) => each.key === key) || experiments.reduce((a, b) => (b.runs > a.runs ? b : a));
  const state = { column: null, metric: experiment.measure, cost: "passes", hidden: new Set() };
  const body = el("div");
  const view = el("div", {}, glance(experiments, open), body);
  const draw = () => body.replaceChildren(...experimentCards(experiments, experiment, state, draw, open));
  draw();
  return view;
}

function glance(experiments, open) {
  const entries = experiments
    .map((each) => ({
      key: each.key,
      title: each.name,
      cells: each.cells.filter((cell) => cell.metric === each.measure && cell.gain !== null && cell.ci),
    }))
    .filter((entry) => entry.cells.length);
  const cells = entries.flatMap((entry) => entry.cells);
  const count = (kind) => cells.filter((cell) => verdict(cell) === kind).length;
  const tile = (number, words, kind) =>
    el("div", { class: "tile" }, el("b", { class: kind }, number), el("span", {}, words));
  const runs = experiments.reduce((sum, each) => sum + each.runs, 0);
  const picture = figure(
    "All paired gains",
    (width) => strips(entries, width, open),
    "Each mark is a paired gain in points of the experiment's first measure: ● interval above zero, ◆ below, ○ not distinguishable. Choose a name to open the experiment.",
  );
  return el(
    "div",
    {},
    el("h1", {}, experiments.length > 1 ? "Results" : experiments[0].title),
    el(
      "p",
      { class: "lede" },
      "What a method changes, seed by seed: gains are differences between runs that share everything else, with 95% intervals.",
    ),
    el(
      "div",
      { class: "tiles" },
      tile(experiments.length, experiments.length > 1 ? "experiments" : "experiment"),
      tile(runs, "runs"),
      tile(`● ${count("better")}`, "gains above zero", "better"),
      tile(`○ ${count("open")}`, "not distinguishable", "open"),
      tile(`◆ ${count("worse")}`, "gains below zero", "worse"),
    ),
    experiments.length > 1 && entries.length > 0 && card("At a glance", null, picture),
  );
}

function experimentCards(experiments, experiment, state, draw, open) {
  if (!experiment.columns.includes(state.column)) {
    state.column = experiment.columns[Math.floor(experiment.columns.length / 2)];
  }
  const measure = experiment.measures.find((each) => each.name === state.metric);
  const controls = el(
    "div",
    { class: "controls" },
    experiments.length > 1 &&
      choice(
        "Experiment",
        experiments.map((each) => [each.key, each.name]),
        experiment.key,
        open,
      ),
    choice(
      "Measure",
      experiment.measures.map((each) => [each.name, each.title]),
      state.metric,
      (value) => {
        state.metric = value;
        draw();
      },
    ),
    experiment.columns.length > 1 &&
      choice(
        "Column of the pictures",
        experiment.columns.map((name) => [name, name]),
        state.column,
        (value) => {
          state.column = value;
          draw();
        },
      ),
  );
  return [
    el("h1", { id: "experiment" }, experiments.length > 1 ? experiment.title : "In detail"),
    el(
      "p",
      { class: "soft" },
      `${experiment.runs} runs, up to ${experiment.seeds} seeds a cell, from ${experiment.origin}.`,
    ),
    controls,
    el("p", { class: "soft" }, `${measure.title}: ${measure.formula}`),
    gainsCard(experiment, state),
    tableCard(experiment, state),
    curvesCard(experiment, state, draw),
    matricesCard(experiment, state),
    el("div", { class: "pair" }, forgettingCard(experiment, state), costCard(experiment, state, draw)),
    replayCard(experiment, state),
    settingsCard(experiment),
    commandsCard(experiment),
  ].filter(Boolean);
}

function gainsCard(experiment, state) {
  const baseline = Object.fromEntries(experiment.methods.map((method) => [method.name, method.baseline]));
  const cells = experiment.cells.filter((cell) => cell.metric === state.metric && cell.gain !== null);
  if (!cells.length) return card("Paired gains", "No method here has a baseline with common seeds.");
  const blocks = experiment.columns
    .map((column) => ({
      title: experiment.columns.length > 1 ? heading(column) : null,
      cells: cells
        .filter((cell) => cell.column === column)
        .map((cell) => ({ label: `${cell.method} over ${baseline[cell.method]}`, cell })),
    }))
    .filter((block) => block.cells.length);
  const published = cells.some((cell) => cell.published_gain !== null);
  return card(
    "Paired gains",
    "Differences between runs of the same seed: what both share cancels. Positive is better.",
    figure(
      "Paired gains with 95% intervals",
      (width) => forest(blocks, width),
      `In points, with 95% intervals (Student's t). ● above zero, ◆ below, ○ not distinguishable.${published ? " Dotted tick: the difference of the published means." : ""}`,
    ),
    command(experiment.commands.gains),
  );
}

const heading = (column) =>
  /^[\d.]+%$/.test(column) ? `${column} of the training labels are wrong` : column;

function tableCard(experiment, state) {
  const digits = 1;
  const filled = new Set(experiment.cells.map((cell) => cell.metric));
  const own = experiment.measures.slice(0, experiment.own_measures).filter((each) => filled.has(each.name));
  const measures = own.some((each) => each.name === state.metric)
    ? own
    : experiment.measures.filter((each) => each.name === state.metric);
  const places = experiment.columns.flatMap((column) => measures.map((measure) => ({ column, measure })));
  const find = (method, { column, measure }) =>
    experiment.cells.find(
      (cell) => cell.method === method && cell.column === column && cell.metric === measure.name,
    );
  const best = places.map((place) => {
    const means = experiment.methods
      .map((method) => find(method.name, place)?.mean)
      .filter((mean) => mean !== null && mean !== undefined);
    return place.measure.higher ? Math.max(...means) : Math.min(...means);
  });
  const row = (method) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, method.name),
      places.map((place, i) => {
        const cell = find(method.name, place);
        if (!cell || cell.mean === null) return el("td", {}, "–");
        const value = plain(cell.mean, digits),
          top = cell.mean === best[i],
          kind = verdict(cell);
        return el(
          "td",
          { class: top ? "best" : null },
          top ? el("b", {}, value) : value,
          cell.sd !== null && el("span", { class: "soft" }, ` ± ${plain(cell.sd, digits)}`),
          cell.gain !== null &&
            el(
              "small",
              { class: kind === "open" ? null : kind },
              `${{ better: "▲", worse: "▼", open: "" }[kind]} ${gainText(cell)}`,
            ),
          cell.published &&
            el(
              "small",
              {},
              `paper ${plain(cell.published[0], digits)}${cell.published[1] === null ? "" : ` ± ${plain(cell.published[1], digits)}`}`,
            ),
        );
      }),
    );
  const several = measures.length > 1;
  return card(
    "Table",
    "Mean ± SD over seeds; ★ the best of its column. Below it the paired gain with its interval.",
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of results" },
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col" }, "Method"),
            places.map(({ column, measure }) =>
              el(
                "th",
                { scope: "col" },
                several && experiment.columns.length > 1
                  ? [column, el("br"), measure.title]
                  : several
                    ? measure.title
                    : column,
              ),
            ),
          ),
        ),
        el("tbody", {}, experiment.methods.map(row)),
      ),
    ),
    el(
      "details",
      {},
      el("summary", {}, "What the numbers are"),
      el(
        "ul",
        { class: "soft" },
        experiment.notes.map((note) => el("li", {}, note)),
      ),
    ),
    Object.entries(experiment.files).map(([name, text]) =>
      el("details", {}, el("summary", {}, `As ${name}`), copyable(text, true)),
    ),
  );
}
