// What stands behind the gains: curves, heat maps, forgetting, costs, replay, settings, commands.
"use strict";

const LIFT = "noisy_lift";

const NUMBERS_OF_REPLAY = {
  noisy_lift: ["Wrong labels replayed, as a multiple of their fair share", 1, 2],
  drawn_mislabelled_share: ["Share of replay that carried a wrong label", 0, 2],
  mean_mass: ["Mean mass: how strongly replay counts", 1, 2],
  mean_effective_sample_size: ["Effective sample size: how many memories share the replay", 0, 0],
  mixed_share: ["Share of replayed groups with both passing and failing programs", 0, 2],
};

function curvesCard(experiment, state, draw) {
  const data = experiment.curves[state.column];
  if (!data) {
    const kept = Object.keys(experiment.curves).length;
    return card(
      "Accuracy over the stream",
      kept
        ? `No curves in the column ${state.column}.`
        : "These saved results hold no curves. Sweep again with this version, or report the run folders.",
    );
  }
  const names = experiment.methods.map((method) => method.name);
  const active = new Set(names.filter((name) => data.lines[name] && !state.hidden.has(name)));
  const legend = el(
    "ul",
    { class: "legend" },
    names.map((name, i) => {
      if (!data.lines[name]) return null;
      const style = styleOf(i);
      return el(
        "li",
        {},
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(active.has(name)),
            click: () => {
              if (state.hidden.has(name)) state.hidden.delete(name);
              else state.hidden.add(name);
              draw();
            },
          },
          svg(
            "svg",
            { viewBox: "0 0 26 10", "aria-hidden": "true" },
            svg("line", {
              x1: 0,
              x2: 26,
              y1: 5,
              y2: 5,
              stroke: style.colour,
              "stroke-width": 3,
              "stroke-dasharray": style.dash,
            }),
          ),
          name,
        ),
      );
    }),
  );
  return card(
    `Accuracy over the stream${experiment.columns.length > 1 ? `, ${state.column}` : ""}`,
    "How well each method knows all that it has seen so far, in percent. The one that ends highest is drawn thick.",
    figure(
      "Accuracy over the stream",
      (width) => curves(data, names, active, width),
      "Lines: means over seeds. Band: ± 1 SD, of the best, or of all where two are chosen. Dashed lines: a new task begins.",
    ),
    legend,
    command(experiment.commands.curves),
  );
}

function matricesCard(experiment, state) {
  const found = experiment.matrices[state.column];
  if (!found) return null;
  return card(
    `Accuracy on each task after each task${experiment.columns.length > 1 ? `, ${state.column}` : ""}`,
    "In percent. Columns: the task tested; rows: after which task. A column that darkens downwards is forgotten.",
    heatMaps(experiment, found, (value, t, j) => `${plain(value)}% on task ${j + 1} after task ${t + 1}`),
  );
}

function heatMaps(experiment, found, words) {
  return el(
    "div",
    { class: "heat" },
    experiment.methods
      .filter((method) => found[method.name])
      .map((method) =>
        figure(method.name, (width) => matrix(method.name, found[method.name], Math.min(width, 330), words)),
      ),
  );
}

function rowsOf(experiment, state, valueOf) {
  return experiment.methods
    .map((method, i) => ({ label: method.name, colour: styleOf(i).colour, ...valueOf(method.name) }))
    .filter((row) => row.value !== null && row.value !== undefined);
}

function forgettingCard(experiment, state) {
  const measure = ["average_forgetting", "mean_forgetting"]
    .map((name) => experiment.measures.find((each) => each.name === name))
    .find(Boolean);
  if (!measure) return null;
  const rows = rowsOf(experiment, state, (method) => {
    const cell = experiment.cells.find(
      (each) => each.method === method && each.column === state.column && each.metric === measure.name,
    );
    return { value: cell?.mean, spread: cell?.sd };
  });
  if (!rows.length) return null;
  const best = rows.reduce((a, b) => (b.value < a.value ? b : a)).label;
  return card(
    "Forgetting",
    `${measure.title}: ${measure.formula}. ${state.column}.`,
    figure(
      "Forgetting by method",
      (width) => bars(rows, { best, digits: 1 }, width),
      "Mean ± SD over seeds. The least is in bold.",
    ),
  );
}

function costCard(experiment, state, draw) {
  const measured = {
    passes: Object.keys(experiment.passes).length,
    seconds: Object.keys(experiment.seconds).length,
  };
  if (!measured.passes && !measured.seconds) return null;
  if (!measured[state.cost]) state.cost = measured.passes ? "passes" : "seconds";
  const costOf = (name) =>
    state.cost === "seconds"
      ? experiment.seconds[name]
      : experiment.passes[name] && experiment.passes[name].forward + experiment.passes[name].backward;
  const baselines = new Set(experiment.methods.map((method) => method.baseline));
  const points = experiment.methods
    .map((method, i) => {
      const cell = experiment.cells.find(
        (each) => each.method === method.name && each.column === state.column && each.metric === state.metric,
      );
      const gain = cell && (cell.gain ?? (baselines.has(method.name) ? 0 : null));
      return { label: method.name, colour: styleOf(i).colour, x: costOf(method.name), y: gain, ci: cell?.ci };
    })
    .filter((point) => point.x !== undefined && point.y !== null && point.y !== undefined);
  if (!points.length) return null;
  const unit = state.cost === "seconds" ? "seconds a run" : "passes per stream example";
  for (const point of points)
    point.words = `${point.label}: ${plain(point.x)} ${unit}, gain ${signed(point.y)}`;
  const toggle =
    measured.passes > 0 &&
    measured.seconds > 0 &&
    choice(
      "Cost in",
      [
        ["passes", "passes"],
        ["seconds", "seconds"],
      ],
      state.cost,
      (value) => {
        state.cost = value;
        draw();
      },
    );
  return card(
    "Cost against gain",
    `Forward and backward passes, scoring included, against the paired gain. Baselines stand at zero. ${state.column}.`,
    toggle,
    figure("Cost against gain", (width) => scatter(points, { x: unit, y: "gain (points)" }, width)),
    command(experiment.commands.costs),
  );
}

function replayCard(experiment, state) {
  const found = experiment.replay[state.column],
    tasks = experiment.replayed_tasks[state.column];
  if (!found) return null;
  const pictures = Object.entries(NUMBERS_OF_REPLAY)
    .map(([name, [title, reference, digits]]) => {
      const rows = rowsOf(experiment, state, (method) => ({ value: found[method]?.[name] }));
      if (!rows.length || rows.every((row) => row.value === reference)) return null;
      return el(
        "div",
        {},
        el("h3", {}, title),
        figure(
          title,
          (width) => bars(rows, { reference, digits }, width),
          name === LIFT
            ? "At 1, wrong labels are replayed as often as by chance; bars to the left avoid them."
            : null,
        ),
      );
    })
    .filter(Boolean);
  if (tasks)
    pictures.push(
      el(
        "div",
        {},
        el("h3", {}, "Tasks that were replayed (columns) while each task was learned (rows), in percent"),
        heatMaps(
          experiment,
          tasks,
          (value, t, j) => `${plain(value)}% of the replay in task ${t + 1} came from task ${j + 1}`,
        ),
      ),
    );
  return pictures.length
    ? card(
        `What was replayed${experiment.columns.length > 1 ? `, ${state.column}` : ""}`,
        "Means over seeds. Record a run (--record 12) to see which classes and tasks, moment by moment, in the inspector.",
        el("div", { class: "pair" }, pictures),
      )
    : null;
}

function settingsCard(experiment) {
  if (!experiment.settings.length) return null;
  const line = (setting) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, setting.name),
      el(
        "td",
        {},
        setting.values
          ? Object.entries(setting.values).map(([method, value]) =>
              el("div", {}, el("span", { class: "soft" }, `${method}: `), value),
            )
          : setting.value,
      ),
      el("td", { class: "soft" }, setting.note),
    );
  const table = (settings) =>
    el("div", { class: "scroll" }, el("table", { class: "settings" }, el("tbody", {}, settings.map(line))));
  const noted = experiment.settings.filter((setting) => setting.note);
  return card(
    "Settings",
    noted.length
      ? "Where they are not the paper's, or the paper leaves them open:"
      : "None of them is marked as differing from the paper.",
    noted.length > 0 && table(noted),
    el(
      "details",
      {},
      el("summary", {}, `All ${experiment.settings.length} settings`),
      table(experiment.settings),
    ),
  );
}

function commandsCard(experiment) {
  return card(
    "Make it yourself",
    "What made these runs, and what shows them again:",
    Object.entries(experiment.commands).map(([name, text]) => [
      el("h3", {}, name),
      copyable(text.split(" && ").join(" &&\n")),
    ]),
  );
}

function command(text) {
  return text ? el("details", {}, el("summary", {}, "The command"), copyable(text)) : null;
}

function copyable(text, wide) {
  const block = el("pre", { class: wide ? "wide" : null, tabindex: 0 }, text);
  const button = el(
    "button",
    {
      type: "button",
      click: async () => {
        try {
          await navigator.clipboard.writeText(text);
        } catch {
          getSelection().selectAllChildren(block);
          document.execCommand("copy");
        }
        button.textContent = "Copied";
        setTimeout(() => {
          button.textContent = "Copy";
        }, 1500);
      },
    },
    "Copy",
  );
  return el("div", { class: "copy" }, block, button);
}
