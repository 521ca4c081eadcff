// Reads the data that stand in the page, and shows the view that the address names.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
DATA.experiments.forEach((each, i) => {
  each.key =
    DATA.experiments.findIndex((other) => other.name === each.name) === i
      ? each.name
      : `${each.name}-${i + 1}`;
});

const main = document.getElementById("content");
const links = document.getElementById("views");
const views = [];
if (DATA.experiments.length) views.push(["results", "Results"]);
if (DATA.inspector.runs.length) views.push(["inspector", "Inspector"]);
links.replaceChildren(...views.map(([name, title]) => el("a", { href: `#${name}` }, title)));

function show() {
  tip.hide();
  const [name, key] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const view = views.some(([known]) => known === name) ? name : views[0][0];
  for (const link of links.children) {
    if (link.getAttribute("href") === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(
    view === "inspector" ? inspectorView(DATA.inspector) : resultsView(DATA.experiments, key, open),
  );
  if (key) document.getElementById("experiment")?.scrollIntoView();
}

function open(key) {
  location.hash = `#results/${encodeURIComponent(key)}`;
}

const themes = ["auto", "light", "dark"];
const button = document.getElementById("theme");
button.addEventListener("click", () => {
  const root = document.documentElement;
  const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
  if (next === "auto") delete root.dataset.theme;
  else root.dataset.theme = next;
  button.textContent = `Theme: ${next}`;
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
addEventListener("hashchange", show);
show();
