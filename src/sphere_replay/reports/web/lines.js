// Accuracy over the stream, and labels that keep apart.
"use strict";

function curves(data, methods, active, width) {
  const narrow = width < 620,
    height = narrow ? 300 : 380,
    left = 40,
    bottom = height - 40;
  const names = methods.filter((name) => data.lines[name]);
  const labelled = !narrow,
    right = width - (labelled ? Math.min(200, 16 + 7 * Math.max(...names.map((n) => n.length + 4))) : 12);
  const last = data.ends[data.ends.length - 1];
  const all = names.flatMap((name) => data.lines[name].mean);
  const high = Math.min(100, Math.ceil((Math.max(...all) + 3) / 10) * 10);
  const x = linear([0, last], [left, right]),
    y = linear([0, high], [bottom, 22]);
  const picture = canvasOf(width, height);
  for (const value of ticks(0, high, 5)) {
    picture.append(
      svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: left - 7, y: y(value) + 4, "text-anchor": "end" }, trimmed(value)),
    );
  }
  let start = 0;
  data.ends.forEach((end, task) => {
    if (task + 1 < data.ends.length)
      picture.append(
        svg("line", { class: "grid", "stroke-dasharray": "3 3", x1: x(end), x2: x(end), y1: 14, y2: bottom }),
      );
    picture.append(
      svg(
        "text",
        { class: "small", x: x((start + end) / 2), y: 12, "text-anchor": "middle" },
        narrow || data.ends.length > 8 ? task + 1 : `task ${task + 1}`,
      ),
    );
    start = end;
  });
  for (const value of ticks(0, last, narrow ? 3 : 6))
    picture.append(
      svg("text", { class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle" }, trimmed(value)),
    );
  picture.append(
    svg(
      "text",
      { class: "small", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" },
      "training step",
    ),
  );
  const labels = [];
  const best = names.reduce((a, b) => (data.lines[b].mean.at(-1) > data.lines[a].mean.at(-1) ? b : a));
  for (const name of [...names].sort((a, b) => (a === best) - (b === best))) {
    const line = data.lines[name],
      style = styleOf(methods.indexOf(name));
    const faded = !active.has(name);
    const points = line.x.map((step, i) => `${x(step).toFixed(1)} ${y(line.mean[i]).toFixed(1)}`);
    if (!faded && line.seeds > 1 && (name === best || active.size <= 2)) {
      const up = line.x.map(
        (step, i) => `${x(step).toFixed(1)} ${y(Math.min(high, line.mean[i] + line.sd[i])).toFixed(1)}`,
      );
      const down = line.x
        .map((step, i) => `${x(step).toFixed(1)} ${y(Math.max(0, line.mean[i] - line.sd[i])).toFixed(1)}`)
        .reverse();
      picture.append(
        svg("path", { d: `M${[...up, ...down].join("L")}Z`, fill: style.colour, opacity: 0.16 }),
      );
    }
    picture.append(
      svg("path", {
        class: faded ? "faded" : "",
        d: `M${points.join("L")}`,
        fill: "none",
        stroke: style.colour,
        "stroke-width": name === best ? 3.5 : 1.8,
        "stroke-dasharray": name === best ? null : style.dash,
        "stroke-linejoin": "round",
      }),
    );
    if (!faded) labels.push({ name, colour: style.colour, y: y(line.mean.at(-1)), value: line.mean.at(-1) });
  }
  if (labelled) {
    apart(labels, 17, 20, bottom).forEach((label) =>
      picture.append(
        svg(
          "text",
          { class: label.name === best ? "strong" : "", x: right + 8, y: label.at + 4, ink: label.colour },
          `${label.name} ${plain(label.value, 0)}`,
        ),
      ),
    );
  }
  const cursor = svg("line", { class: "zero", y1: 16, y2: bottom, visibility: "hidden" });
  const pane = svg("rect", {
    x: left,
    y: 14,
    width: right - left,
    height: bottom - 14,
    fill: "transparent",
    pointermove: (event) => {
      const box = picture.getBoundingClientRect();
      const step = Math.max(0, Math.min(last, ((event.clientX - box.left - left) / (right - left)) * last));
      cursor.setAttribute("x1", x(step));
      cursor.setAttribute("x2", x(step));
      cursor.setAttribute("visibility", "visible");
      const rows = labels.map(({ name }) => [name, at(data.lines[name], step)]).sort((a, b) => b[1] - a[1]);
      tip.show(
        [
          el("b", {}, `step ${Math.round(step)}`),
          el(
            "dl",
            {},
            rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, plain(value))]),
          ),
        ],
        event.clientX,
        event.clientY,
      );
    },
    pointerleave: () => {
      tip.hide();
      cursor.setAttribute("visibility", "hidden");
    },
  });
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
  sorted.forEach((label, i) => {
    label.at = Math.max(label.y, i ? sorted[i - 1].at + gap : low);
  });
  for (let i = sorted.length - 1, limit = high; i >= 0; i--, limit -= gap)
    sorted[i].at = Math.min(sorted[i].at, limit);
  return sorted;
}
