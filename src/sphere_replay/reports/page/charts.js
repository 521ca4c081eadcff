// The pictures of the results: gains, curves, heat maps, dots and bars, cost against gain.
"use strict";

const ROW = 26;

function verdict(cell) {
  if (!cell.ci) return "open";
  return cell.ci[0] > 0 ? "better" : cell.ci[1] < 0 ? "worse" : "open";
}
const WORDS = { better: "better", worse: "worse", open: "not distinguishable" };

// ● better, ◆ worse, ○ open: the shape says it too, not the colour alone.
function mark(kind, x, y, size = 5) {
  if (kind === "worse") {
    return svg("path", { class: kind, d: `M${x - size} ${y}L${x} ${y - size}L${x + size} ${y}L${x} ${y + size}Z` });
  }
  return svg("circle", { class: kind === "open" ? "open hollow" : kind, cx: x, cy: y, r: size, "stroke-width": 2 });
}

function gainText(cell) {
  return cell.ci ? `${signed(cell.gain)} [${signed(cell.ci[0])}, ${signed(cell.ci[1])}]` : signed(cell.gain);
}

function axisBelow(picture, scale, values, top, bottom, unit) {
  for (const value of values) {
    picture.append(
      svg("line", { class: value === 0 ? "zero" : "grid", x1: scale(value), x2: scale(value), y1: top, y2: bottom }),
      svg("text", { class: "tick", x: scale(value), y: bottom + 16, "text-anchor": "middle" }, trimmed(value) + (unit || "")),
    );
  }
}

// Paired gains with intervals: blocks of rows, a heading each.
function forest(blocks, width) {
  const narrow = width < 620;
  const rows = blocks.flatMap((block) => block.cells);
  const longest = Math.max(...rows.map((row) => row.label.length), 8);
  const left = narrow ? 8 : Math.min(longest * 7.2 + 16, width * 0.42);
  const right = width - (narrow ? 8 : 150);
  const step = narrow ? ROW + 18 : ROW;
  const height = blocks.reduce((sum, block) => sum + (block.title ? 30 : 6) + block.cells.length * step, 0) + 34;
  const ends = rows.flatMap((row) => [row.cell.gain, ...(row.cell.ci || [])]);
  const low = Math.min(0, ...ends), high = Math.max(0, ...ends), pad = 0.05 * (high - low || 1);
  const x = linear([low - pad, high + pad], [left, right]);
  const picture = canvasOf(width, height);
  axisBelow(picture, x, ticks(low - pad, high + pad, Math.max(2, (right - left) / 75)), 4, height - 22);
  let y = 0;
  for (const block of blocks) {
    y += block.title ? 30 : 6;
    if (block.title) picture.append(svg("text", { class: "strong", x: 0, y: y - 8 }, block.title));
    for (const { label, cell } of block.cells) {
      const kind = verdict(cell), middle = y + (narrow ? 30 : step / 2);
      const words = `${label}: ${gainText(cell)} points over ${cell.seeds} seeds, ${WORDS[kind]}`;
      const group = explained(svg("g", {}), words);
      group.append(svg("rect", { x: 0, y, width, height: step, fill: "transparent" }));
      group.append(svg("text", narrow ? { x: 8, y: y + 16 } : { x: left - 12, y: middle + 4.5, "text-anchor": "end" }, label));
      group.append(svg("text", { class: kind === "open" ? "small" : `small strong ${kind}`, x: width, y: narrow ? y + 16 : middle + 4, "text-anchor": "end" }, gainText(cell)));
      if (cell.ci) group.append(svg("line", { class: kind, x1: x(cell.ci[0]), x2: x(cell.ci[1]), y1: middle, y2: middle, "stroke-width": 2.5, "stroke-linecap": "round" }));
      group.append(mark(kind, x(cell.gain), middle));
      if (cell.published_gain !== null && cell.published_gain !== undefined) {
        const p = x(cell.published_gain);
        if (p >= left && p <= right) group.append(svg("path", { d: `M${p} ${middle - 8}V${middle + 8}`, stroke: "currentColor", "stroke-width": 1.5, "stroke-dasharray": "2 2" }));
      }
      picture.append(group);
      y += step;
    }
  }
  return picture;
}

// All experiments on one axis, a mark for each paired gain.
function strips(entries, width, open) {
  const narrow = width < 620, step = narrow ? 50 : 34, height = entries.length * step + 30;
  const left = narrow ? 8 : Math.min(300, width * 0.34), right = width - 10;
  const gains = entries.flatMap((entry) => entry.cells.map((cell) => cell.gain));
  const low = Math.min(-1, ...gains), high = Math.max(1, ...gains), pad = 0.04 * (high - low);
  const x = linear([low - pad, high + pad], [left, right]);
  const picture = canvasOf(width, height);
  axisBelow(picture, x, ticks(low, high, (right - left) / 75), 0, height - 22);
  entries.forEach((entry, index) => {
    const y = index * step + (narrow ? 32 : step / 2), place = `#results/${encodeURIComponent(entry.key)}`;
    const link = svg("a", { href: place, click: () => open(entry.key) },
      svg("text", { class: "strong", x: narrow ? 8 : left - 14, y: narrow ? index * step + 15 : y + 4.5, "text-anchor": narrow ? "start" : "end", fill: "currentColor" }, entry.title));
    picture.append(link);
    for (const cell of [...entry.cells].sort((a, b) => (verdict(a) !== "open") - (verdict(b) !== "open"))) {
      const kind = verdict(cell);
      picture.append(explained(svg("g", { class: kind === "open" ? "quiet" : "" }, mark(kind, x(cell.gain), y, kind === "open" ? 4 : 5.5)),
        `${entry.title}, ${cell.method} (${cell.column}): ${gainText(cell)} points, ${WORDS[kind]}`));
    }
  });
  return picture;
}

function curves(data, methods, active, width) {
  const narrow = width < 620, height = narrow ? 300 : 380, left = 40, bottom = height - 40;
  const names = methods.filter((name) => data.lines[name]);
  const labelled = !narrow, right = width - (labelled ? Math.min(200, 16 + 7 * Math.max(...names.map((n) => n.length + 4))) : 12);
  const last = data.ends[data.ends.length - 1];
  const all = names.flatMap((name) => data.lines[name].mean);
  const high = Math.min(100, Math.ceil((Math.max(...all) + 3) / 10) * 10);
  const x = linear([0, last], [left, right]), y = linear([0, high], [bottom, 22]);
  const picture = canvasOf(width, height);
  for (const value of ticks(0, high, 5)) {
    picture.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: left - 7, y: y(value) + 4, "text-anchor": "end" }, trimmed(value)));
  }
  let start = 0;
  data.ends.forEach((end, task) => {
    if (task + 1 < data.ends.length) picture.append(svg("line", { class: "grid", "stroke-dasharray": "3 3", x1: x(end), x2: x(end), y1: 14, y2: bottom }));
    picture.append(svg("text", { class: "small", x: x((start + end) / 2), y: 12, "text-anchor": "middle" }, narrow || data.ends.length > 8 ? task + 1 : `task ${task + 1}`));
    start = end;
  });
  for (const value of ticks(0, last, narrow ? 3 : 6)) picture.append(svg("text", { class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle" }, trimmed(value)));
  picture.append(svg("text", { class: "small", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, "training step"));
  const labels = [];
  const best = names.reduce((a, b) => (data.lines[b].mean.at(-1) > data.lines[a].mean.at(-1) ? b : a));
  for (const name of [...names].sort((a, b) => (a === best) - (b === best))) {
    const line = data.lines[name], style = styleOf(methods.indexOf(name));
    const faded = !active.has(name);
    const points = line.x.map((step, i) => `${x(step).toFixed(1)} ${y(line.mean[i]).toFixed(1)}`);
    if (!faded && line.seeds > 1 && (name === best || active.size <= 2)) {
      const up = line.x.map((step, i) => `${x(step).toFixed(1)} ${y(Math.min(high, line.mean[i] + line.sd[i])).toFixed(1)}`);
      const down = line.x.map((step, i) => `${x(step).toFixed(1)} ${y(Math.max(0, line.mean[i] - line.sd[i])).toFixed(1)}`).reverse();
      picture.append(svg("path", { d: `M${[...up, ...down].join("L")}Z`, fill: style.colour, opacity: 0.16 }));
    }
    picture.append(svg("path", { class: faded ? "faded" : "", d: `M${points.join("L")}`, fill: "none", stroke: style.colour, "stroke-width": name === best ? 3.5 : 1.8, "stroke-dasharray": name === best ? null : style.dash, "stroke-linejoin": "round" }));
    if (!faded) labels.push({ name, colour: style.colour, y: y(line.mean.at(-1)), value: line.mean.at(-1) });
  }
  if (labelled) {
    apart(labels, 17, 20, bottom).forEach((label) => picture.append(svg("text", { class: label.name === best ? "strong" : "", x: right + 8, y: label.at + 4, ink: label.colour }, `${label.name} ${plain(label.value, 0)}`)));
  }
  const cursor = svg("line", { class: "zero", y1: 16, y2: bottom, visibility: "hidden" });
  const pane = svg("rect", { x: left, y: 14, width: right - left, height: bottom - 14, fill: "transparent",
    pointermove: (event) => {
      const box = picture.getBoundingClientRect();
      const step = Math.max(0, Math.min(last, (event.clientX - box.left - left) / (right - left) * last));
      cursor.setAttribute("x1", x(step)); cursor.setAttribute("x2", x(step)); cursor.setAttribute("visibility", "visible");
      const rows = labels.map(({ name }) => [name, at(data.lines[name], step)]).sort((a, b) => b[1] - a[1]);
      tip.show([el("b", {}, `step ${Math.round(step)}`), el("dl", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, plain(value))]))], event.clientX, event.clientY);
    },
    pointerleave: () => { tip.hide(); cursor.setAttribute("visibility", "hidden"); } });
  picture.append(cursor, pane);
  return picture;
}

function at(line, step) {
  const next = line.x.findIndex((value) => value >= step);
  if (next <= 0) return line.mean[next < 0 ? line.mean.length - 1 : 0];
  const share = (step - line.x[next - 1]) / (line.x[next] - line.x[next - 1]);
  return line.mean[next - 1] + share * (line.mean[next] - line.mean[next - 1]);
}

// Labels at least `gap` apart, in order, within a range.
function apart(labels, gap, low, high) {
  const sorted = [...labels].sort((a, b) => a.y - b.y);
  sorted.forEach((label, i) => { label.at = Math.max(label.y, i ? sorted[i - 1].at + gap : low); });
  for (let i = sorted.length - 1, limit = high; i >= 0; i--, limit -= gap) sorted[i].at = Math.min(sorted[i].at, limit);
  return sorted;
}

function matrix(name, rows, width, words) {
  const size = Math.min(46, (width - 34) / rows[0].length), height = rows.length * size + 28;
  const picture = canvasOf(width, height);
  picture.append(svg("text", { class: "strong", x: 0, y: 13 }, name));
  rows.forEach((row, t) => {
    picture.append(svg("text", { class: "tick", x: 24, y: 24 + t * size + size / 2 + 4, "text-anchor": "end" }, t + 1));
    row.forEach((value, j) => {
      if (value === null) return;
      const cell = svg("g", {},
        svg("rect", { x: 30 + j * size, y: 24 + t * size, width: size - 2, height: size - 2, rx: 3, fill: ramp("viridis", value / 100) }),
        size > 26 && svg("text", { x: 30 + j * size + size / 2 - 1, y: 24 + t * size + size / 2 + 4, "text-anchor": "middle", class: value > 62 ? "on-light" : "on-dark" }, plain(value, 0)));
      picture.append(explained(cell, `${name}: ${words(value, t, j)}`));
    });
  });
  return picture;
}

// A row for each method: a bar or a dot from a reference, with a spread where there is one.
function bars(rows, { reference = 0, digits = 1, best }, width) {
  const narrow = width < 520, step = narrow ? 42 : 30, height = rows.length * step + 26;
  const longest = Math.max(...rows.map((row) => row.label.length));
  const left = narrow ? 8 : Math.min(longest * 7.2 + 16, width * 0.45), right = width - 58;
  const ends = rows.flatMap((row) => [row.value - (row.spread || 0), row.value + (row.spread || 0), reference, 0]);
  const low = Math.min(...ends), high = Math.max(...ends);
  const x = linear([low, high === low ? low + 1 : high], [left, right]);
  const picture = canvasOf(width, height);
  axisBelow(picture, x, ticks(low, high, (right - left) / 80), 0, height - 22);
  if (reference) picture.append(svg("line", { class: "zero", "stroke-dasharray": "4 3", x1: x(reference), x2: x(reference), y1: 0, y2: height - 22 }));
  rows.forEach((row, i) => {
    const y = i * step + (narrow ? 28 : step / 2), from = x(reference), to = x(row.value);
    const words = `${row.label}: ${plain(row.value, digits)}${row.spread ? ` ± ${plain(row.spread, digits)}` : ""}`;
    const group = explained(svg("g", {}), words);
    group.append(svg("text", { class: row.label === best ? "strong" : "", x: narrow ? 8 : left - 12, y: narrow ? i * step + 14 : y + 4.5, "text-anchor": narrow ? "start" : "end" }, row.label));
    group.append(svg("rect", { x: Math.min(from, to), y: y - 7, width: Math.max(2, Math.abs(to - from)), height: 14, rx: 3, fill: row.colour, opacity: row.label === best ? 1 : 0.75 }));
    if (row.spread) group.append(svg("line", { class: "zero", x1: x(row.value - row.spread), x2: x(row.value + row.spread), y1: y, y2: y }));
    group.append(svg("text", { class: row.label === best ? "strong" : "small", x: width, y: y + 4, "text-anchor": "end" }, plain(row.value, digits)));
    picture.append(group);
  });
  return picture;
}

function scatter(points, { x: xTitle, y: yTitle }, width) {
  const height = 330, left = 46, bottom = height - 42, right = width - 16;
  const ys = points.flatMap((p) => [p.y, ...(p.ci || []), 0]);
  const low = Math.min(...ys), high = Math.max(...ys), pad = 0.08 * (high - low || 1);
  const most = Math.max(...points.map((p) => p.x)) * 1.12;
  const x = linear([0, most], [left, right]), y = linear([low - pad, high + pad], [bottom, 14]);
  const picture = canvasOf(width, height);
  for (const value of ticks(low - pad, high + pad, 6)) picture.append(svg("line", { class: value === 0 ? "zero" : "grid", x1: left, x2: right, y1: y(value), y2: y(value) }), svg("text", { class: "tick", x: left - 7, y: y(value) + 4, "text-anchor": "end" }, trimmed(value)));
  for (const value of ticks(0, most, width / 90)) picture.append(svg("text", { class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle" }, trimmed(value)));
  picture.append(svg("text", { class: "small", x: right, y: height - 4, "text-anchor": "end" }, xTitle), svg("text", { class: "small", x: 0, y: 10 }, yTitle));
  const labels = points.map((p) => ({ ...p, y: y(p.y), value: p.y }));
  for (const point of points) {
    const group = explained(svg("g", {}), point.words);
    if (point.ci) group.append(svg("line", { x1: x(point.x), x2: x(point.x), y1: y(point.ci[0]), y2: y(point.ci[1]), stroke: point.colour, "stroke-width": 2, opacity: 0.6 }));
    group.append(svg("circle", { cx: x(point.x), cy: y(point.y), r: 6.5, fill: point.colour }));
    picture.append(group);
  }
  apart(labels, 15, 20, bottom - 4).forEach((label) => {
    const before = x(label.x) > (left + right) / 2;
    picture.append(svg("text", { class: "small", x: x(label.x) + (before ? -11 : 11), y: label.at + 4, "text-anchor": before ? "end" : "start" }, label.label));
  });
  return picture;
}

// Colours for numbers: one hand for amounts, one for signs; both safe for colour-blind readers.
const RAMPS = {
  viridis: ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"],
  signs: ["#0a4f8f", "#5b9fd0", "#c9ccd1", "#e8995a", "#b34700"],
};

function ramp(name, share) {
  const stops = RAMPS[name], place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(place)), rest = place - i;
  const parts = [1, 3, 5].map((k) => {
    const [a, b] = [stops[i], stops[i + 1]].map((stop) => parseInt(stop.slice(k, k + 2), 16));
    return Math.round(a + rest * (b - a));
  });
  return `rgb(${parts.join(" ")})`;
}
