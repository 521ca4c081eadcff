// One memory: its numbers, its neighbours with their votes, and the sentence why it is replayed.
"use strict";

const named = (run, label) => run.names[label] ?? String(label);

function numbersOf(run, moment, i) {
  const rows = [];
  if (moment.label) rows.push(["label", named(run, moment.label[i])]);
  if (moment.true)
    rows.push(["true label", named(run, moment.true[i]) + (moment.true[i] === moment.label[i] ? "" : " ✗")]);
  if (!moment.label) rows.push(["task", run.names[moment.task[i]] ?? moment.task[i] + 1]);
  for (const name of ["increment", "consensus", "backing", "weight"]) {
    if (moment[name])
      rows.push([
        name,
        name === "weight"
          ? `${plain(moment.weight[i], 2)} ×`
          : (QUANTITIES[name].ramp === "signs" ? signed : plain)(moment[name][i], QUANTITIES[name].digits),
      ]);
  }
  rows.push(["loss", plain(moment.loss[i], 2)]);
  return el(
    "dl",
    {},
    rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
}

function memoryTip(run, moment, i, thumbs) {
  return [thumbs.of(moment, i, true), numbersOf(run, moment, i)].filter(Boolean);
}

function memoryPanel(run, moment, i, thumbs, choose) {
  const neighbours = moment.neighbours[i].map((other, n) => {
    const wrong =
      moment.true && moment.label[other] !== moment.true[other]
        ? ` ✗ (${named(run, moment.true[other])})`
        : "";
    const name = moment.label ? named(run, moment.label[other]) + wrong : named(run, moment.task[other]);
    return el(
      "li",
      {},
      el(
        "button",
        { type: "button", click: () => choose(other) },
        el(
          "span",
          { class: "who" },
          thumbs.of(moment, other, true),
          el(
            "span",
            {},
            name,
            el("br"),
            el("span", { class: "soft" }, `increment ${number(moment.increment[other])}`),
          ),
        ),
        meter(moment.shares[i][n], `${plain(100 * moment.shares[i][n], 0)}%`),
      ),
    );
  });
  return [
    el("h2", {}, "A memory"),
    el("div", { class: "verdict" }, reason(run, moment, i)),
    thumbs.of(moment, i, false),
    numbersOf(run, moment, i),
    moment.votes && [
      el("h3", {}, "The neighbours' votes"),
      moment.voted[i].map(
        (label, n) =>
          moment.votes[i][n] > 0 &&
          el(
            "div",
            { class: "meter" },
            meter(moment.votes[i][n], ""),
            `${named(run, label)}: ${plain(100 * moment.votes[i][n], 0)}%${label === moment.label[i] ? " (its own label)" : ""}`,
          ),
      ),
    ],
    el("h3", {}, "Its nearest neighbours"),
    el("p", { class: "soft" }, "with their share in its neighbourhood"),
    el("ol", {}, neighbours),
  ]
    .flat(3)
    .filter(Boolean);
}

function meter(share, text) {
  return el(
    "span",
    { class: "meter" },
    svg(
      "svg",
      { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { width: 100, height: 8, fill: "var(--line)" }),
      svg("rect", { width: 100 * Math.min(1, share), height: 8, fill: "var(--accent)" }),
    ),
    text,
  );
}

// Signed, with as many digits as small numbers need.
const digitsOf = (value) => (Math.abs(value) < 0.095 ? 3 : 2);

const number = (value) => signed(value, digitsOf(value));

const amount = (value) => plain(Math.abs(value), digitsOf(value));

// One sentence: why it is replayed as often as it is.
function reason(run, moment, i) {
  const weight = moment.weight[i],
    rise = moment.increment[i],
    consensus = moment.consensus[i];
  const times = `${plain(weight, 2)} × its fair share`;
  const own =
    rise > 0 ? `its own loss would rise by ${amount(rise)}` : `its own loss would fall by ${amount(rise)}`;
  const wrong =
    moment.true && moment.label[i] !== moment.true[i]
      ? ` Its label is in fact wrong: it is ${named(run, moment.true[i])}.`
      : "";
  if (run.select === "uniform")
    return `Replayed like all others, because uniform replay asks nobody; ${own}, and its neighbourhood says ${number(consensus)}.${wrong}`;
  if (run.select.startsWith("mir") || run.select === "loss") {
    const by = run.select === "loss" ? `its loss is ${plain(moment.loss[i], 2)}` : own;
    return `Replayed ${times}, because ${by}; nobody else is asked (the neighbourhood says ${number(consensus)}).${wrong}`;
  }
  const backing = moment.backing?.[i],
    counts = moment.agreement > 0 && backing !== undefined;
  const said = `consensus ${number(consensus)}`,
    hardly = 0.1 * Math.max(...moment.consensus.map(Math.abs));
  if (weight >= 0.9 && weight <= 1.1)
    return `Replayed about as often as by chance (${times}): ${own}, its neighbourhood says ${number(consensus)}, and neither stands out.${wrong}`;
  const because = [];
  if (weight > 1.1) {
    if (consensus > hardly)
      because.push(
        `the losses of its neighbourhood would rise (${said})${rise > 0 ? ", its own with them" : ", though its own would fall"}`,
      );
    if (counts && backing > 0.7)
      because.push(
        `${because.length ? "" : `not for its losses (${said}), but `}its neighbours share its label, and labels that nobody backs leave it their share`,
      );
    if (!because.length) because.push(`others are replayed less (${said})`);
    return `Replayed more often (${times}): ${because.join("; and ")}.${wrong}`;
  }
  if (counts && backing < 0.7)
    because.push(`most of its neighbours carry another label (backing ${plain(backing, 2)})`);
  if (rise > hardly && consensus <= hardly)
    because.push(
      `${own}, but its neighbours' would not (${said}), and a rise that stands alone may be a wrong label`,
    );
  else if (!because.length)
    because.push(
      consensus > hardly
        ? `its neighbourhood would rise by less than others (${said})`
        : `its neighbourhood needs no rehearsal (${said})`,
    );
  return `Replayed less often (${times}): ${because.join("; and ")}.${wrong}`;
}
