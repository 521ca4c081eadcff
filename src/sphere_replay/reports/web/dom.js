// Elements, scales and the shared tooltip. Data only ever become text nodes and attributes that hold
// no code: there is no innerHTML in this page.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function fillIn(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "ink")
      node.style.fill = value; // stronger than the sheet, and no inline style
    else if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

const el = (tag, attributes, ...children) => fillIn(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fillIn(document.createElementNS(SVG, tag), attributes, children);

function card(title, why, ...children) {
  return el(
    "section",
    { class: "card", "aria-label": title },
    el("header", {}, el("h2", {}, title)),
    why && el("p", { class: "why" }, why),
    children,
  );
}

function choice(label, values, current, onChange) {
  const select = el(
    "select",
    { "aria-label": label, change: () => onChange(select.value) },
    values.map(([value, text]) => el("option", { value, selected: value === current }, text)),
  );
  return el("label", {}, label, select);
}

// A figure that draws itself anew whenever its width changes, so that letters keep their size.
function figure(description, draw, caption) {
  const place = el("div");
  let width = 0;
  const redraw = () => {
    if (!place.isConnected || !place.clientWidth) return;
    width = place.clientWidth;
    const picture = draw(width);
    fillIn(picture, { role: "group", "aria-label": description }, []);
    place.replaceChildren(picture);
  };
  new ResizeObserver(() => {
    if (Math.abs(place.clientWidth - width) > 1) redraw();
  }).observe(place);
  const node = el("figure", {}, place, caption && el("figcaption", {}, caption));
  node.redraw = redraw;
  return node;
}

function canvasOf(width, height) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, height, preserveAspectRatio: "xMinYMin" });
}

function linear([from, to], [start, end]) {
  const slope = to === from ? 0 : (end - start) / (to - from);
  return (value) => start + (value - from) * slope;
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
}

const signed = (value, digits = 1) => {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : (value < 0 ? "−" : "+") + text;
};
const plain = (value, digits = 1) => value.toFixed(digits).replace("-", "−");
const trimmed = (value) => plain(value, 6).replace(/\.?0+$/, "");

// Okabe and Ito's colours, which colour-blind readers tell apart; lighter ones on dark paper.
const HUES = {
  light: ["#0072B2", "#D55E00", "#009E73", "#A8508A", "#B8860B", "#5A5A5A", "#3A9BD9", "#8C564B"],
  dark: ["#56B4E9", "#F0914A", "#33C9A0", "#E29BC7", "#E6B422", "#B8C0C8", "#A5D3F5", "#D6A08F"],
};
const DASHES = [null, "7 3", "2 3", "9 3 2 3"];

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function styleOf(index) {
  const hues = HUES[isDark() ? "dark" : "light"];
  return { colour: hues[index % hues.length], dash: DASHES[Math.floor(index / 4) % DASHES.length] };
}

const tip = {
  node: null,
  show(content, x, y) {
    this.node ||= document.body.appendChild(el("div", { class: "tip", role: "status" }));
    this.node.hidden = false;
    this.node.replaceChildren(
      ...[content].flat().map((part) => (part instanceof Node ? part : el("div", {}, part))),
    );
    const box = this.node.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
    const top = y + 14 + box.height > innerHeight ? y - box.height - 10 : y + 14;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.max(4, top)}px`;
  },
  hide() {
    if (this.node) this.node.hidden = true;
  },
};

// Hover, touch and keyboard focus show the same words.
function explained(node, words) {
  const content = () => (typeof words === "function" ? words() : words);
  const text = typeof words === "string" ? words : null;
  return fillIn(
    node,
    {
      tabindex: 0,
      role: "img",
      "aria-label": text,
      pointermove: (event) => tip.show(content(), event.clientX, event.clientY),
      pointerleave: () => tip.hide(),
      focus: () => {
        const box = node.getBoundingClientRect();
        tip.show(content(), box.left + box.width / 2, box.bottom);
      },
      blur: () => tip.hide(),
    },
    [],
  );
}
addEventListener("keydown", (event) => {
  if (event.key === "Escape") tip.hide();
});
addEventListener("scroll", () => tip.hide(), { passive: true });
