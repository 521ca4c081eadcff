// The memory as a map: places, colours, and what is seen of a memory.
"use strict";

const QUANTITIES = {
  increment: {
    title: "increment",
    words: "how much the memory's own loss would rise by the next update",
    ramp: "signs",
    digits: 3,
  },
  consensus: {
    title: "consensus",
    words: "the increment averaged over its neighbourhood",
    ramp: "signs",
    digits: 3,
  },
  backing: {
    title: "backing",
    words: "how far the neighbours share its label: 1 most of all labels, 0 not at all",
    ramp: "viridis",
    digits: 2,
    range: [0, 1],
  },
  weight: {
    title: "weight",
    words: "how often it is replayed, as a multiple of its fair share",
    ramp: "viridis",
    digits: 2,
  },
  label: { title: "label", words: "the label that is stored with it", digits: 0 },
};

// How a quantity becomes a colour, over all maps that are shown.
function colouring(moments, name, names) {
  const quantity = QUANTITIES[name];
  if (name === "label") {
    return {
      of: (moment, i) => styleOf(moment.label[i]).colour,
      key: () =>
        el(
          "span",
          {},
          [...new Set(moments.flatMap((m) => m.label))]
            .sort((a, b) => a - b)
            .map((label) => el("span", {}, svgDot(styleOf(label).colour), ` ${names[label]}  `)),
        ),
    };
  }
  const values = moments
    .flatMap((moment) => moment[name] || [])
    .map(Math.abs)
    .sort((a, b) => a - b);
  const far = values[Math.floor(0.98 * (values.length - 1))] || 1;
  const [low, high] = quantity.range || (quantity.ramp === "signs" ? [-far, far] : [0, far]);
  const key = () => [
    el("span", {}, trimmed(Number(low.toPrecision(2)))),
    svg(
      "svg",
      { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      Array.from({ length: 50 }, (_, i) =>
        svg("rect", { x: 2 * i, y: 0, width: 2.2, height: 8, fill: ramp(quantity.ramp, i / 49) }),
      ),
    ),
    el("span", {}, trimmed(Number(high.toPrecision(2)))),
  ];
  return {
    of: (moment, i) => (moment[name] ? ramp(quantity.ramp, (moment[name][i] - low) / (high - low)) : "#888"),
    key: () => el("span", { class: "ramp" }, key()),
  };
}

const svgDot = (colour) => {
  const node = svg("svg", { viewBox: "0 0 10 10" }, svg("circle", { cx: 5, cy: 5, r: 5, fill: colour }));
  node.style.width = node.style.height = ".7rem";
  return node;
};

function mapOf(run, moment, { width, scale, wrong, chosen, thumbs, pick }) {
  const height = Math.max(280, Math.min(520, width * 0.82)),
    pad = 22;
  const x = linear([Math.min(...moment.x), Math.max(...moment.x)], [pad, width - pad]);
  const y = linear([Math.min(...moment.y), Math.max(...moment.y)], [height - pad, pad]);
  const unit = Math.max(2.2, Math.min(7, 110 / Math.sqrt(moment.keys.length)));
  const radius = (i) => Math.max(1.6, Math.min(3 * unit, unit * Math.sqrt(moment.weight[i])));
  const picture = canvasOf(width, height);
  fillIn(picture, { class: "map", tabindex: 0, keydown: (event) => steer(event) }, []);
  if (chosen >= 0) {
    moment.neighbours[chosen].forEach((other, n) =>
      picture.append(
        svg("line", {
          class: "link",
          x1: x(moment.x[chosen]),
          y1: y(moment.y[chosen]),
          x2: x(moment.x[other]),
          y2: y(moment.y[other]),
          "stroke-width": 0.8 + 5 * moment.shares[chosen][n],
          opacity: 0.55,
        }),
      ),
    );
  }
  const order = moment.keys.map((_, i) => i).sort((a, b) => moment.weight[b] - moment.weight[a]);
  for (const i of order) {
    const bad = wrong && moment.true && moment.label[i] !== moment.true[i];
    picture.append(
      svg("circle", {
        cx: x(moment.x[i]),
        cy: y(moment.y[i]),
        r: radius(i),
        fill: scale.of(moment, i),
        "fill-opacity": 0.9,
        stroke: bad ? "var(--ink)" : "var(--card)",
        "stroke-width": bad ? 1.8 : 0.7,
        "stroke-dasharray": bad && radius(i) > 4 ? "2.5 1.6" : null, // else it would fall apart
        "data-index": i,
        class: bad ? "wrong" : null,
      }),
    );
  }
  if (chosen >= 0)
    picture.append(
      svg("circle", {
        class: "ring",
        cx: x(moment.x[chosen]),
        cy: y(moment.y[chosen]),
        r: radius(chosen) + 4,
      }),
    );
  const focus = svg("circle", { class: "ring", r: 0, "stroke-dasharray": "3 2" });
  picture.append(focus);
  let at = chosen;
  const point = (i) => {
    at = i;
    focus.setAttribute("cx", x(moment.x[i]));
    focus.setAttribute("cy", y(moment.y[i]));
    focus.setAttribute("r", radius(i) + 3);
    const box = picture.getBoundingClientRect();
    tip.show(
      memoryTip(run, moment, i, thumbs),
      box.left + (x(moment.x[i]) * box.width) / width,
      box.top + (y(moment.y[i]) * box.height) / height,
    );
  };
  const hit = (event) => event.target.dataset?.index;
  picture.addEventListener("pointermove", (event) => {
    const index = hit(event);
    if (index === undefined) {
      tip.hide();
      return;
    }
    tip.show(memoryTip(run, moment, Number(index), thumbs), event.clientX, event.clientY);
  });
  picture.addEventListener("pointerleave", () => tip.hide());
  picture.addEventListener("click", (event) => {
    const index = hit(event);
    tip.hide();
    pick(index === undefined ? null : Number(index));
  });
  picture.addEventListener("blur", () => {
    tip.hide();
    focus.setAttribute("r", 0);
  });
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  // Arrow keys go to the nearest memory that way, Enter chooses it.
  function steer(event) {
    if (event.key === "Enter" && at >= 0) {
      tip.hide();
      pick(at);
      return;
    }
    const way = ways[event.key];
    if (!way) return;
    event.preventDefault();
    if (at < 0) {
      point(order[0]);
      return;
    }
    let next = -1,
      least = Infinity;
    moment.keys.forEach((_, i) => {
      const dx = x(moment.x[i]) - x(moment.x[at]),
        dy = y(moment.y[i]) - y(moment.y[at]);
      const along = dx * way[0] + dy * way[1],
        across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
      if (along > 0.5 && along + 2 * across < least) {
        least = along + 2 * across;
        next = i;
      }
    });
    if (next >= 0) point(next);
  }
  return picture;
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
    const key = moment.keys[i],
      text = moment.texts?.[i] ?? this.texts?.[key];
    if (text !== undefined) {
      return el(
        small ? "span" : "div",
        { class: "text" },
        small && text.length > 160 ? `${text.slice(0, 160)}…` : text,
      );
    }
    const position = this.atlas?.places[key];
    if (position === undefined) return null;
    const { width, height, columns } = this.atlas;
    const canvas = el("canvas", {
      class: "thumb",
      width,
      height,
      role: "img",
      "aria-label": "the stored image",
    });
    canvas
      .getContext("2d")
      .drawImage(
        this.sheet,
        (position % columns) * width,
        Math.floor(position / columns) * height,
        width,
        height,
        0,
        0,
        width,
        height,
      );
    return canvas;
  }
}
