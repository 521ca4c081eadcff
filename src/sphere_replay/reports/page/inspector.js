// The memory as a map, moment by moment: who is replayed, who is not, and why.
"use strict";

const QUANTITIES = {
  increment: { title: "increment", words: "how much the memory's own loss would rise by the next update", ramp: "signs", digits: 3 },
  consensus: { title: "consensus", words: "the increment averaged over its neighbourhood", ramp: "signs", digits: 3 },
  backing: { title: "backing", words: "how far the neighbours share its label: 1 most of all labels, 0 not at all", ramp: "viridis", digits: 2, range: [0, 1] },
  weight: { title: "weight", words: "how often it is replayed, as a multiple of its fair share", ramp: "viridis", digits: 2 },
  label: { title: "label", words: "the label that is stored with it", digits: 0 },
};

function inspectorView(data) {
  const state = { a: 0, b: null, moment: 0, quantity: "weight", wrong: true, chosen: null, playing: null };
  const place = (part) => (part.fill = (...nodes) => part.replaceChildren(...nodes.flat().filter(Boolean)), part);
  const controls = place(el("div", { class: "controls" })), maps = place(el("div", { class: "maps" }));
  const panel = place(el("aside", { class: "card panel", "aria-live": "polite", "aria-label": "The chosen memory" }));
  const below = place(el("div", {})), legend = place(el("div", {}));
  const run = (which) => data.runs[state[which]];
  const partners = () => data.runs.map((each, i) => [i, each]).filter(([i, each]) => i !== state.a && each.stream === run("a").stream);
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
  const sliderWords = () => `moment ${state.moment + 1} of ${run("a").moments.length}, step ${run("a").moments[state.moment].step}`;
  const play = () => {
    clearInterval(state.playing);
    state.playing = state.playing ? null : setInterval(() => {
      if (!maps.isConnected) clearInterval(state.playing);
      else moveTo((state.moment + 1) % run("a").moments.length);
    }, 1100);
    drawControls();
  };

  function drawControls() {
    const other = partners(), moments = run("a").moments;
    const known = Object.entries(QUANTITIES).filter(([name]) => moments[0][name]);
    slider = el("input", { type: "range", id: "moment", min: 0, max: moments.length - 1, value: state.moment, "aria-valuetext": sliderWords(), input: () => moveTo(Number(slider.value)) });
    slider.value = state.moment;
    caption = el("span", {}, sliderWords());
    controls.fill(
      choice("Run", data.runs.map((each, i) => [String(i), each.name]), String(state.a), (value) => {
        Object.assign(state, { a: Number(value), b: null, chosen: null, moment: 0 });
        drawAll();
      }),
      choice("Compare with", [["", other.length ? "nothing" : "no other run on this stream"], ...other.map(([i, each]) => [String(i), each.name])], state.b === null ? "" : String(state.b), (value) => {
        state.b = value === "" ? null : Number(value);
        drawAll();
      }),
      choice("Colour", known.map(([name, { title }]) => [name, title]), state.quantity, (value) => { state.quantity = value; drawMaps(); }),
      el("label", {}, caption, slider),
      moments.length > 1 && el("button", { type: "button", click: play }, state.playing ? "Pause" : "Play"),
      moments[0].true && el("label", { class: "inline" }, el("input", { type: "checkbox", checked: state.wrong, change: (event) => { state.wrong = event.target.checked; drawMaps(); } }), "ring wrong labels"),
    );
  }

  function drawMaps() {
    const which = state.b === null ? ["a"] : ["a", "b"];
    const scale = colouring(which.map((each) => momentOf(each)), state.quantity, run("a").names);
    maps.fill(which.map((each) => {
      const moment = momentOf(each), chosen = state.chosen ? moment.keys.indexOf(state.chosen.key) : -1;
      return card(run(each).method, sentenceOf(run(each), moment),
        figure(`Map of the memory of ${run(each).name}`, (width) => mapOf(run(each), moment, {
          width, scale, wrong: state.wrong, chosen, thumbs: thumbs[run(each).stream], pick: (index) => choose(each, index) })));
    }));
    const quantity = QUANTITIES[state.quantity];
    legend.fill(el("div", { class: "ramp" }, el("span", {}, `Colour: ${quantity.title}, ${quantity.words}.`), scale.key(),
      el("span", {}, "Size: weight. Nearby: similar features (the two principal directions of unit features).")));
  }

  function drawPanel() {
    const which = state.chosen?.which === "b" && state.b !== null ? "b" : "a";
    const moment = momentOf(which), index = state.chosen ? moment.keys.indexOf(state.chosen.key) : -1;
    panel.fill(index < 0
      ? [el("h2", {}, "A memory"), el("p", { class: "soft" }, state.chosen ? "The chosen memory is not stored at this moment: it has not come yet, or was overwritten." : "Choose a point of the map, by a click, or with the arrow keys and Enter.")]
      : memoryPanel(run(which), moment, index, thumbs[run(which).stream], (next) => choose(which, next)));
    if (state.b !== null && index >= 0) {
      const other = which === "a" ? "b" : "a", there = momentOf(other).keys.indexOf(state.chosen.key);
      if (there >= 0) panel.append(el("h3", {}, "In the other run"), el("p", { class: "soft" }, `${run(other).name}: ${reason(run(other), momentOf(other), there)}`));
    }
  }

  function drawBelow() {
    const which = state.b === null ? ["a"] : ["a", "b"];
    below.fill(el("div", { class: "pair" }, which.map((each) => replayedCard(run(each), momentOf(each)))));
  }

  function drawAll() { drawControls(); drawMaps(); drawPanel(); drawBelow(); }
  // Drawn once it stands in the page: pictures measure their place.
  queueMicrotask(drawAll);
  thumbs.forEach((each) => each.ready.then(() => maps.isConnected && drawPanel()));
  return el("div", {}, el("h1", {}, "Inspector"),
    el("p", { class: "lede" }, "What the memory held at a rescoring, how its losses would change, and what that did to its replay."),
    controls, el("div", { class: "inspector" }, el("div", {}, maps, legend, below), panel));
}

const nearestMoment = (run, moment) => run.moments.reduce((a, b) => (Math.abs(b.step - moment.step) < Math.abs(a.step - moment.step) ? b : a));

function sentenceOf(run, moment) {
  const count = moment.keys.length, parts = [`Step ${moment.step}, ${count} memories`, `as if ${plain(moment.ess, 0)} shared the replay`];
  if (Math.abs(moment.mass - 1) > 0.005) parts.push(`mass ${plain(moment.mass, 2)}`);
  if (moment.true) {
    const wrong = moment.keys.map((_, i) => moment.label[i] !== moment.true[i]);
    const stored = wrong.filter(Boolean).length / count;
    const replayed = moment.weight.reduce((sum, weight, i) => sum + (wrong[i] ? weight : 0), 0) / count;
    if (stored > 0) parts.push(`wrong labels: ${plain(100 * stored, 0)}% of the memory, ${plain(100 * replayed, 0)}% of the replay`);
  }
  return `${parts.join("; ")}.`;
}

// How a quantity becomes a colour, over all maps that are shown.
function colouring(moments, name, names) {
  const quantity = QUANTITIES[name];
  if (name === "label") {
    return { of: (moment, i) => styleOf(moment.label[i]).colour, key: () => el("span", {}, [...new Set(moments.flatMap((m) => m.label))].sort((a, b) => a - b).map((label) => el("span", {}, svgDot(styleOf(label).colour), ` ${names[label]}  `))) };
  }
  const values = moments.flatMap((moment) => moment[name] || []).map(Math.abs).sort((a, b) => a - b);
  const far = values[Math.floor(0.98 * (values.length - 1))] || 1;
  const [low, high] = quantity.range || (quantity.ramp === "signs" ? [-far, far] : [0, far]);
  const key = () => [el("span", {}, trimmed(Number(low.toPrecision(2)))),
    svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, Array.from({ length: 50 }, (_, i) => svg("rect", { x: 2 * i, y: 0, width: 2.2, height: 8, fill: ramp(quantity.ramp, i / 49) }))),
    el("span", {}, trimmed(Number(high.toPrecision(2))))];
  return { of: (moment, i) => (moment[name] ? ramp(quantity.ramp, (moment[name][i] - low) / (high - low)) : "#888"), key: () => el("span", { class: "ramp" }, key()) };
}

const svgDot = (colour) => { const node = svg("svg", { viewBox: "0 0 10 10" }, svg("circle", { cx: 5, cy: 5, r: 5, fill: colour })); node.style.width = node.style.height = ".7rem"; return node; };

function mapOf(run, moment, { width, scale, wrong, chosen, thumbs, pick }) {
  const height = Math.max(280, Math.min(520, width * 0.82)), pad = 22;
  const x = linear([Math.min(...moment.x), Math.max(...moment.x)], [pad, width - pad]);
  const y = linear([Math.min(...moment.y), Math.max(...moment.y)], [height - pad, pad]);
  const unit = Math.max(2.2, Math.min(7, 110 / Math.sqrt(moment.keys.length)));
  const radius = (i) => Math.max(1.6, Math.min(3 * unit, unit * Math.sqrt(moment.weight[i])));
  const picture = canvasOf(width, height);
  fillIn(picture, { class: "map", tabindex: 0, keydown: (event) => steer(event) }, []);
  if (chosen >= 0) {
    moment.neighbours[chosen].forEach((other, n) => picture.append(svg("line", { class: "link", x1: x(moment.x[chosen]), y1: y(moment.y[chosen]), x2: x(moment.x[other]), y2: y(moment.y[other]), "stroke-width": 0.8 + 5 * moment.shares[chosen][n], opacity: 0.55 })));
  }
  const order = moment.keys.map((_, i) => i).sort((a, b) => moment.weight[b] - moment.weight[a]);
  for (const i of order) {
    const bad = wrong && moment.true && moment.label[i] !== moment.true[i];
    picture.append(svg("circle", { cx: x(moment.x[i]), cy: y(moment.y[i]), r: radius(i), fill: scale.of(moment, i), "fill-opacity": 0.9,
      stroke: bad ? "var(--ink)" : "var(--card)", "stroke-width": bad ? 1.8 : 0.7, "stroke-dasharray": bad ? "2.5 1.6" : null, "data-index": i, class: bad ? "wrong" : null }));
  }
  if (chosen >= 0) picture.append(svg("circle", { class: "ring", cx: x(moment.x[chosen]), cy: y(moment.y[chosen]), r: radius(chosen) + 4 }));
  const focus = svg("circle", { class: "ring", r: 0, "stroke-dasharray": "3 2" });
  picture.append(focus);
  let at = chosen;
  const point = (i) => {
    at = i;
    focus.setAttribute("cx", x(moment.x[i])); focus.setAttribute("cy", y(moment.y[i])); focus.setAttribute("r", radius(i) + 3);
    const box = picture.getBoundingClientRect();
    tip.show(memoryTip(run, moment, i, thumbs), box.left + x(moment.x[i]) * box.width / width, box.top + y(moment.y[i]) * box.height / height);
  };
  const hit = (event) => event.target.dataset?.index;
  picture.addEventListener("pointermove", (event) => {
    const index = hit(event);
    if (index === undefined) { tip.hide(); return; }
    tip.show(memoryTip(run, moment, Number(index), thumbs), event.clientX, event.clientY);
  });
  picture.addEventListener("pointerleave", () => tip.hide());
  picture.addEventListener("click", (event) => { const index = hit(event); tip.hide(); pick(index === undefined ? null : Number(index)); });
  picture.addEventListener("blur", () => { tip.hide(); focus.setAttribute("r", 0); });
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  // Arrow keys go to the nearest memory that way, Enter chooses it.
  function steer(event) {
    if (event.key === "Enter" && at >= 0) { tip.hide(); pick(at); return; }
    const way = ways[event.key];
    if (!way) return;
    event.preventDefault();
    if (at < 0) { point(order[0]); return; }
    let next = -1, least = Infinity;
    moment.keys.forEach((_, i) => {
      const dx = x(moment.x[i]) - x(moment.x[at]), dy = y(moment.y[i]) - y(moment.y[at]);
      const along = dx * way[0] + dy * way[1], across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
      if (along > 0.5 && along + 2 * across < least) { least = along + 2 * across; next = i; }
    });
    if (next >= 0) point(next);
  }
  return picture;
}

const named = (run, label) => run.names[label] ?? String(label);

function numbersOf(run, moment, i) {
  const rows = [];
  if (moment.label) rows.push(["label", named(run, moment.label[i])]);
  if (moment.true) rows.push(["true label", named(run, moment.true[i]) + (moment.true[i] === moment.label[i] ? "" : " ✗")]);
  if (!moment.label) rows.push(["task", run.names[moment.task[i]] ?? moment.task[i] + 1]);
  for (const name of ["increment", "consensus", "backing", "weight"]) {
    if (moment[name]) rows.push([name, name === "weight" ? `${plain(moment.weight[i], 2)} ×` : (QUANTITIES[name].ramp === "signs" ? signed : plain)(moment[name][i], QUANTITIES[name].digits)]);
  }
  rows.push(["loss", plain(moment.loss[i], 2)]);
  return el("dl", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function memoryTip(run, moment, i, thumbs) {
  return [thumbs.of(moment, i, true), numbersOf(run, moment, i)].filter(Boolean);
}

function memoryPanel(run, moment, i, thumbs, choose) {
  const neighbours = moment.neighbours[i].map((other, n) => {
    const wrong = moment.true && moment.label[other] !== moment.true[other] ? ` ✗ (${named(run, moment.true[other])})` : "";
    const name = moment.label ? named(run, moment.label[other]) + wrong : named(run, moment.task[other]);
    return el("li", {}, el("button", { type: "button", click: () => choose(other) },
      el("span", { class: "who" }, thumbs.of(moment, other, true), el("span", {}, name, el("br"), el("span", { class: "soft" }, `increment ${number(moment.increment[other])}`))),
      meter(moment.shares[i][n], `${plain(100 * moment.shares[i][n], 0)}%`)));
  });
  return [
    el("h2", {}, "A memory"),
    el("div", { class: "verdict" }, reason(run, moment, i)),
    thumbs.of(moment, i, false), numbersOf(run, moment, i),
    moment.votes && [el("h3", {}, "The neighbours' votes"), moment.voted[i].map((label, n) => moment.votes[i][n] > 0 && el("div", { class: "meter" }, meter(moment.votes[i][n], ""), `${named(run, label)}: ${plain(100 * moment.votes[i][n], 0)}%${label === moment.label[i] ? " (its own label)" : ""}`))],
    el("h3", {}, "Its nearest neighbours"), el("p", { class: "soft" }, "with their share in its neighbourhood"), el("ol", {}, neighbours),
  ].flat(3).filter(Boolean);
}

function meter(share, text) {
  return el("span", { class: "meter" }, svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { width: 100, height: 8, fill: "var(--line)" }), svg("rect", { width: 100 * Math.min(1, share), height: 8, fill: "var(--accent)" })), text);
}

// Signed, with as many digits as small numbers need.
const digitsOf = (value) => (Math.abs(value) < 0.095 ? 3 : 2);
const number = (value) => signed(value, digitsOf(value));
const amount = (value) => plain(Math.abs(value), digitsOf(value));

// One sentence: why it is replayed as often as it is.
function reason(run, moment, i) {
  const weight = moment.weight[i], rise = moment.increment[i], consensus = moment.consensus[i];
  const times = `${plain(weight, 2)} × its fair share`;
  const own = rise > 0 ? `its own loss would rise by ${amount(rise)}` : `its own loss would fall by ${amount(rise)}`;
  const wrong = moment.true && moment.label[i] !== moment.true[i] ? ` Its label is in fact wrong: it is ${named(run, moment.true[i])}.` : "";
  if (run.select === "uniform") return `Replayed like all others, because uniform replay asks nobody; ${own}, and its neighbourhood says ${number(consensus)}.${wrong}`;
  if (run.select.startsWith("mir") || run.select === "loss") {
    const by = run.select === "loss" ? `its loss is ${plain(moment.loss[i], 2)}` : own;
    return `Replayed ${times}, because ${by}; nobody else is asked (the neighbourhood says ${number(consensus)}).${wrong}`;
  }
  const backing = moment.backing?.[i], counts = moment.agreement > 0 && backing !== undefined;
  const said = `consensus ${number(consensus)}`, hardly = 0.1 * Math.max(...moment.consensus.map(Math.abs));
  if (weight >= 0.9 && weight <= 1.1) return `Replayed about as often as by chance (${times}): ${own}, its neighbourhood says ${number(consensus)}, and neither stands out.${wrong}`;
  const because = [];
  if (weight > 1.1) {
    if (consensus > hardly) because.push(`the losses of its neighbourhood would rise (${said})${rise > 0 ? ", its own with them" : ", though its own would fall"}`);
    if (counts && backing > 0.7) because.push(`${because.length ? "" : `not for its losses (${said}), but `}its neighbours share its label, and labels that nobody backs leave it their share`);
    if (!because.length) because.push(`others are replayed less (${said})`);
    return `Replayed more often (${times}): ${because.join("; and ")}.${wrong}`;
  }
  if (counts && backing < 0.7) because.push(`most of its neighbours carry another label (backing ${plain(backing, 2)})`);
  if (rise > hardly && consensus <= hardly) because.push(`${own}, but its neighbours' would not (${said}), and a rise that stands alone may be a wrong label`);
  else if (!because.length) because.push(consensus > hardly ? `its neighbourhood would rise by less than others (${said})` : `its neighbourhood needs no rehearsal (${said})`);
  return `Replayed less often (${times}): ${because.join("; and ")}.${wrong}`;
}

// What is replayed at this moment, by label or task, beside what is stored.
function replayedCard(run, moment) {
  const groups = new Map(), of = moment.label || moment.task;
  of.forEach((label, i) => {
    const group = groups.get(label) || { stored: 0, replayed: 0 };
    group.stored += 1; group.replayed += moment.weight[i];
    groups.set(label, group);
  });
  const rows = [...groups].sort(([a], [b]) => a - b).map(([label, group]) => {
    const task = moment.label ? moment.task[of.indexOf(label)] : null;
    return { label: task === null ? named(run, label) : `${named(run, label)} (task ${task + 1})`, value: group.replayed / group.stored, colour: styleOf(0).colour };
  });
  return card("What is replayed now", `By ${moment.label ? "label" : "task"}, as a multiple of its fair share. ${run.method}.`,
    figure("Replay by label", (width) => bars(rows, { reference: 1, digits: 2 }, width)));
}

// Pictures are cut out of one sheet; texts are shown as they are.
class Thumbnails {
  constructor({ atlas, texts }) {
    Object.assign(this, { atlas, texts });
    this.ready = Promise.resolve();
    if (atlas) {
      this.sheet = new Image();
      this.sheet.src = atlas.picture;
      this.ready = this.sheet.decode().catch(() => {});
    }
  }
  of(moment, i, small) {
    const key = moment.keys[i], text = moment.texts?.[i] ?? this.texts?.[key];
    if (text !== undefined) {
      return el(small ? "span" : "div", { class: "text" }, small && text.length > 160 ? `${text.slice(0, 160)}…` : text);
    }
    const position = this.atlas?.places[key];
    if (position === undefined) return null;
    const { width, height, columns } = this.atlas;
    const canvas = el("canvas", { class: "thumb", width, height, role: "img", "aria-label": "the stored image" });
    canvas.getContext("2d").drawImage(this.sheet, (position % columns) * width, Math.floor(position / columns) * height, width, height, 0, 0, width, height);
    return canvas;
  }
}
