// The inspector: which run, which moment, which memory; and what is drawn anew when one changes.
"use strict";

function inspectorView(data) {
  const state = { a: 0, b: null, moment: 0, quantity: "weight", wrong: true, chosen: null, playing: null };
  const place = (part) => (
    (part.fill = (...nodes) => part.replaceChildren(...nodes.flat().filter(Boolean))),
    part
  );
  const controls = place(el("div", { class: "controls" })),
    maps = place(el("div", { class: "maps" }));
  const panel = place(
    el("aside", { class: "card panel", "aria-live": "polite", "aria-label": "The chosen memory" }),
  );
  const below = place(el("div", {})),
    legend = place(el("div", {}));
  const run = (which) => data.runs[state[which]];
  const partners = () =>
    data.runs
      .map((each, i) => [i, each])
      .filter(([i, each]) => i !== state.a && each.stream === run("a").stream);
  const momentOf = (which) => nearestMoment(run(which), run("a").moments[state.moment]);
  const thumbs = data.streams.map((stream) => new Thumbnails(stream));
  let slider, caption;

  const choose = (which, index) => {
    state.chosen = index === null ? null : { which, key: momentOf(which).keys[index] };
    drawMaps();
    drawPanel();
  };
  const moveTo = (moment) => {
    state.moment = Math.max(0, Math.min(run("a").moments.length - 1, moment));
    slider.value = state.moment;
    caption.textContent = sliderWords();
    slider.setAttribute("aria-valuetext", sliderWords());
    drawMaps();
    drawPanel();
    drawBelow();
  };
  const sliderWords = () =>
    `moment ${state.moment + 1} of ${run("a").moments.length}, step ${run("a").moments[state.moment].step}`;
  const play = () => {
    clearInterval(state.playing);
    state.playing = state.playing
      ? null
      : setInterval(() => {
          if (!maps.isConnected) clearInterval(state.playing);
          else moveTo((state.moment + 1) % run("a").moments.length);
        }, 1100);
    drawControls();
  };

  function drawControls() {
    const other = partners(),
      moments = run("a").moments;
    const known = Object.entries(QUANTITIES).filter(([name]) => moments[0][name]);
    slider = el("input", {
      type: "range",
      id: "moment",
      min: 0,
      max: moments.length - 1,
      value: state.moment,
      "aria-valuetext": sliderWords(),
      input: () => moveTo(Number(slider.value)),
    });
    slider.value = state.moment;
    caption = el("span", {}, sliderWords());
    controls.fill(
      choice(
        "Run",
        data.runs.map((each, i) => [String(i), each.name]),
        String(state.a),
        (value) => {
          Object.assign(state, { a: Number(value), b: null, chosen: null, moment: 0 });
          drawAll();
        },
      ),
      choice(
        "Compare with",
        [
          ["", other.length ? "nothing" : "no other run on this stream"],
          ...other.map(([i, each]) => [String(i), each.name]),
        ],
        state.b === null ? "" : String(state.b),
        (value) => {
          state.b = value === "" ? null : Number(value);
          drawAll();
        },
      ),
      choice(
        "Colour",
        known.map(([name, { title }]) => [name, title]),
        state.quantity,
        (value) => {
          state.quantity = value;
          drawMaps();
        },
      ),
      el("label", {}, caption, slider),
      moments.length > 1 && el("button", { type: "button", click: play }, state.playing ? "Pause" : "Play"),
      moments[0].true &&
        el(
          "label",
          { class: "inline" },
          el("input", {
            type: "checkbox",
            checked: state.wrong,
            change: (event) => {
              state.wrong = event.target.checked;
              drawMaps();
            },
          }),
          "ring wrong labels",
        ),
    );
  }

  function drawMaps() {
    const which = state.b === null ? ["a"] : ["a", "b"];
    const scale = colouring(
      which.map((each) => momentOf(each)),
      state.quantity,
      run("a").names,
    );
    maps.fill(
      which.map((each) => {
        const moment = momentOf(each),
          chosen = state.chosen ? moment.keys.indexOf(state.chosen.key) : -1;
        return card(
          run(each).method,
          sentenceOf(run(each), moment),
          figure(`Map of the memory of ${run(each).name}`, (width) =>
            mapOf(run(each), moment, {
              width,
              scale,
              wrong: state.wrong,
              chosen,
              thumbs: thumbs[run(each).stream],
              pick: (index) => choose(each, index),
            }),
          ),
        );
      }),
    );
    const quantity = QUANTITIES[state.quantity];
    legend.fill(
      el(
        "div",
        { class: "ramp" },
        el("span", {}, `Colour: ${quantity.title}, ${quantity.words}.`),
        scale.key(),
        el(
          "span",
          {},
          "Size: weight. Nearby: similar features (the two principal directions of unit features).",
        ),
      ),
    );
  }

  function drawPanel() {
    const which = state.chosen?.which === "b" && state.b !== null ? "b" : "a";
    const moment = momentOf(which),
      index = state.chosen ? moment.keys.indexOf(state.chosen.key) : -1;
    panel.fill(
      index < 0
        ? [
            el("h2", {}, "A memory"),
            el(
              "p",
              { class: "soft" },
              state.chosen
                ? "The chosen memory is not stored at this moment: it has not come yet, or was overwritten."
                : "Choose a point of the map, by a click, or with the arrow keys and Enter.",
            ),
          ]
        : memoryPanel(run(which), moment, index, thumbs[run(which).stream], (next) => choose(which, next)),
    );
    if (state.b !== null && index >= 0) {
      const other = which === "a" ? "b" : "a",
        there = momentOf(other).keys.indexOf(state.chosen.key);
      if (there >= 0)
        panel.append(
          el("h3", {}, "In the other run"),
          el("p", { class: "soft" }, `${run(other).name}: ${reason(run(other), momentOf(other), there)}`),
        );
    }
  }

  function drawBelow() {
    const which = state.b === null ? ["a"] : ["a", "b"];
    below.fill(
      el(
        "div",
        { class: "pair" },
        which.map((each) => replayedCard(run(each), momentOf(each))),
      ),
    );
  }

  function drawAll() {
    drawControls();
    drawMaps();
    drawPanel();
    drawBelow();
  }
  // Drawn once it stands in the page: pictures measure their place.
  queueMicrotask(drawAll);
  thumbs.forEach((each) => each.ready.then(() => maps.isConnected && drawPanel()));
  return el(
    "div",
    {},
    el("h1", {}, "Inspector"),
    el(
      "p",
      { class: "lede" },
      "What the memory held at a rescoring, how its losses would change, and what that did to its replay.",
    ),
    controls,
    el("div", { class: "inspector" }, el("div", {}, maps, legend, below), panel),
  );
}

const nearestMoment = (run, moment) =>
  run.moments.reduce((a, b) => (Math.abs(b.step - moment.step) < Math.abs(a.step - moment.step) ? b : a));

function sentenceOf(run, moment) {
  const count = moment.keys.length,
    parts = [`Step ${moment.step}, ${count} memories`, `as if ${plain(moment.ess, 0)} shared the replay`];
  if (Math.abs(moment.mass - 1) > 0.005) parts.push(`mass ${plain(moment.mass, 2)}`);
  if (moment.true) {
    const wrong = moment.keys.map((_, i) => moment.label[i] !== moment.true[i]);
    const stored = wrong.filter(Boolean).length / count;
    const replayed = moment.weight.reduce((sum, weight, i) => sum + (wrong[i] ? weight : 0), 0) / count;
    if (stored > 0)
      parts.push(
        `wrong labels: ${plain(100 * stored, 0)}% of the memory, ${plain(100 * replayed, 0)}% of the replay`,
      );
  }
  return `${parts.join("; ")}.`;
}

// What is replayed at this moment, by label or task, beside what is stored.
function replayedCard(run, moment) {
  const groups = new Map(),
    of = moment.label || moment.task;
  of.forEach((label, i) => {
    const group = groups.get(label) || { stored: 0, replayed: 0 };
    group.stored += 1;
    group.replayed += moment.weight[i];
    groups.set(label, group);
  });
  const rows = [...groups]
    .sort(([a], [b]) => a - b)
    .map(([label, group]) => {
      const task = moment.label ? moment.task[of.indexOf(label)] : null;
      return {
        label: task === null ? named(run, label) : `${named(run, label)} (task ${task + 1})`,
        value: group.replayed / group.stored,
        colour: styleOf(0).colour,
      };
    });
  return card(
    "What is replayed now",
    `By ${moment.label ? "label" : "task"}, as a multiple of its fair share. ${run.method}.`,
    figure("Replay by label", (width) => bars(rows, { reference: 1, digits: 2 }, width)),
  );
}
