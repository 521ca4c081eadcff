// Heat maps, bars, cost against gain, and colours for numbers.
"use strict";

function matrix(name, rows, width, words) {
  const size = Math.min(46, (width - 34) / rows[0].length),
    height = rows.length * size + 28;
  const picture = canvasOf(width, height);
  picture.append(svg("text", { class: "strong", x: 0, y: 13 }, name));
  rows.forEach((row, t) => {
    picture.append(
      svg("text", { class: "tick", x: 24, y: 24 + t * size + size / 2 + 4, "text-anchor": "end" }, t + 1),
    );
    row.forEach((value, j) => {
      if (value === null) return;
      const cell = svg(
        "g",
        {},
        svg("rect", {
          x: 30 + j * size,
          y: 24 + t * size,
          width: size - 2,
          height: size - 2,
          rx: 3,
          fill: ramp("viridis", value / 100),
        }),
        size > 26 &&
          svg(
            "text",
            {
              x: 30 + j * size + size / 2 - 1,
              y: 24 + t * size + size / 2 + 4,
              "text-anchor": "middle",
              class: value > 62 ? "on-light" : "on-dark",
            },
            plain(value, 0),
          ),
      );
      picture.append(explained(cell, `${name}: ${words(value, t, j)}`));
    });
  });
  return picture;
}

// A row for each method: a bar or a dot from a reference, with a spread where there is one.
function bars(rows, { reference = 0, digits = 1, best }, width) {
  const narrow = width < 520,
    step = narrow ? 42 : 30,
    height = rows.length * step + 26;
  const longest = Math.max(...rows.map((row) => row.label.length));
  const left = narrow ? 8 : Math.min(longest * 7.2 + 16, width * 0.45),
    right = width - 58;
  const ends = rows.flatMap((row) => [
    row.value - (row.spread || 0),
    row.value + (row.spread || 0),
    reference,
  ]);
  const low = Math.min(...ends),
    high = Math.max(...ends);
  const x = linear([low, high === low ? low + 1 : high], [left, right]);
  const picture = canvasOf(width, height);
  axisBelow(picture, x, ticks(low, high, (right - left) / 80), 0, height - 22);
  if (reference)
    picture.append(
      svg("line", {
        class: "zero",
        "stroke-dasharray": "4 3",
        x1: x(reference),
        x2: x(reference),
        y1: 0,
        y2: height - 22,
      }),
    );
  rows.forEach((row, i) => {
    const y = i * step + (narrow ? 28 : step / 2),
      from = x(reference),
      to = x(row.value);
    const words = `${row.label}: ${plain(row.value, digits)}${row.spread ? ` ± ${plain(row.spread, digits)}` : ""}`;
    const group = explained(svg("g", {}), words);
    group.append(
      svg(
        "text",
        {
          class: row.label === best ? "strong" : "",
          x: narrow ? 8 : left - 12,
          y: narrow ? i * step + 14 : y + 4.5,
          "text-anchor": narrow ? "start" : "end",
        },
        row.label,
      ),
    );
    group.append(
      svg("rect", {
        x: Math.min(from, to),
        y: y - 7,
        width: Math.max(2, Math.abs(to - from)),
        height: 14,
        rx: 3,
        fill: row.colour,
        opacity: row.label === best ? 1 : 0.75,
      }),
    );
    if (row.spread)
      group.append(
        svg("line", {
          class: "zero",
          x1: x(row.value - row.spread),
          x2: x(row.value + row.spread),
          y1: y,
          y2: y,
        }),
      );
    group.append(
      svg(
        "text",
        { class: row.label === best ? "strong" : "small", x: width, y: y + 4, "text-anchor": "end" },
        plain(row.value, digits),
      ),
    );
    picture.append(group);
  });
  return picture;
}

function scatter(points, { x: xTitle, y: yTitle }, width) {
  const height = 330,
    left = 46,
    bottom = height - 42,
    right = width - 16;
  const ys = points.flatMap((p) => [p.y, ...(p.ci || []), 0]);
  const low = Math.min(...ys),
    high = Math.max(...ys),
    pad = 0.08 * (high - low || 1);
  const most = Math.max(...points.map((p) => p.x)) * 1.12;
  const x = linear([0, most], [left, right]),
    y = linear([low - pad, high + pad], [bottom, 14]);
  const picture = canvasOf(width, height);
  for (const value of ticks(low - pad, high + pad, 6))
    picture.append(
      svg("line", { class: value === 0 ? "zero" : "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: left - 7, y: y(value) + 4, "text-anchor": "end" }, trimmed(value)),
    );
  for (const value of ticks(0, most, width / 90))
    picture.append(
      svg("text", { class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle" }, trimmed(value)),
    );
  picture.append(
    svg("text", { class: "small", x: right, y: height - 4, "text-anchor": "end" }, xTitle),
    svg("text", { class: "small", x: 0, y: 10 }, yTitle),
  );
  const labels = points.map((p) => ({ ...p, y: y(p.y), value: p.y }));
  for (const point of points) {
    const group = explained(svg("g", {}), point.words);
    if (point.ci)
      group.append(
        svg("line", {
          x1: x(point.x),
          x2: x(point.x),
          y1: y(point.ci[0]),
          y2: y(point.ci[1]),
          stroke: point.colour,
          "stroke-width": 2,
          opacity: 0.6,
        }),
      );
    group.append(svg("circle", { cx: x(point.x), cy: y(point.y), r: 6.5, fill: point.colour }));
    picture.append(group);
  }
  apart(labels, 15, 20, bottom - 4).forEach((label) => {
    const before = x(label.x) > (left + right) / 2;
    picture.append(
      svg(
        "text",
        {
          class: "small",
          x: x(label.x) + (before ? -11 : 11),
          y: label.at + 4,
          "text-anchor": before ? "end" : "start",
        },
        label.label,
      ),
    );
  });
  return picture;
}

// Colours for numbers: one hand for amounts, one for signs; both safe for colour-blind readers.
const RAMPS = {
  viridis: ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"],
  signs: ["#0a4f8f", "#5b9fd0", "#c9ccd1", "#e8995a", "#b34700"],
};

function ramp(name, share) {
  const stops = RAMPS[name],
    place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(place)),
    rest = place - i;
  const parts = [1, 3, 5].map((k) => {
    const [a, b] = [stops[i], stops[i + 1]].map((stop) => parseInt(stop.slice(k, k + 2), 16));
    return Math.round(a + rest * (b - a));
  });
  return `rgb(${parts.join(" ")})`;
}
