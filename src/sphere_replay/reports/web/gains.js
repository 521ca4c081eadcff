// Paired gains: their verdicts, their marks, and the two pictures made of them.
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
    return svg("path", {
      class: kind,
      d: `M${x - size} ${y}L${x} ${y - size}L${x + size} ${y}L${x} ${y + size}Z`,
    });
  }
  return svg("circle", {
    class: kind === "open" ? "open hollow" : kind,
    cx: x,
    cy: y,
    r: size,
    "stroke-width": 2,
  });
}

function gainText(cell) {
  return cell.ci ? `${signed(cell.gain)} [${signed(cell.ci[0])}, ${signed(cell.ci[1])}]` : signed(cell.gain);
}

function axisBelow(picture, scale, values, top, bottom, unit) {
  for (const value of values) {
    picture.append(
      svg("line", {
        class: value === 0 ? "zero" : "grid",
        x1: scale(value),
        x2: scale(value),
        y1: top,
        y2: bottom,
      }),
      svg(
        "text",
        { class: "tick", x: scale(value), y: bottom + 16, "text-anchor": "middle" },
        trimmed(value) + (unit || ""),
      ),
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
  const height =
    blocks.reduce((sum, block) => sum + (block.title ? 30 : 6) + block.cells.length * step, 0) + 34;
  const ends = rows.flatMap((row) => [row.cell.gain, ...(row.cell.ci || [])]);
  const low = Math.min(0, ...ends),
    high = Math.max(0, ...ends),
    pad = 0.05 * (high - low || 1);
  const x = linear([low - pad, high + pad], [left, right]);
  const picture = canvasOf(width, height);
  axisBelow(picture, x, ticks(low - pad, high + pad, Math.max(2, (right - left) / 75)), 4, height - 22);
  let y = 0;
  for (const block of blocks) {
    y += block.title ? 30 : 6;
    if (block.title) picture.append(svg("text", { class: "strong", x: 0, y: y - 8 }, block.title));
    for (const { label, cell } of block.cells) {
      const kind = verdict(cell),
        middle = y + (narrow ? 30 : step / 2);
      const words = `${label}: ${gainText(cell)} points over ${cell.seeds} seeds, ${WORDS[kind]}`;
      const group = explained(svg("g", {}), words);
      group.append(svg("rect", { x: 0, y, width, height: step, fill: "transparent" }));
      group.append(
        svg(
          "text",
          narrow ? { x: 8, y: y + 16 } : { x: left - 12, y: middle + 4.5, "text-anchor": "end" },
          label,
        ),
      );
      group.append(
        svg(
          "text",
          {
            class: kind === "open" ? "small" : `small strong ${kind}`,
            x: width,
            y: narrow ? y + 16 : middle + 4,
            "text-anchor": "end",
          },
          gainText(cell),
        ),
      );
      if (cell.ci)
        group.append(
          svg("line", {
            class: kind,
            x1: x(cell.ci[0]),
            x2: x(cell.ci[1]),
            y1: middle,
            y2: middle,
            "stroke-width": 2.5,
            "stroke-linecap": "round",
          }),
        );
      group.append(mark(kind, x(cell.gain), middle));
      if (cell.published_gain !== null && cell.published_gain !== undefined) {
        const p = x(cell.published_gain);
        if (p >= left && p <= right)
          group.append(
            svg("path", {
              d: `M${p} ${middle - 8}V${middle + 8}`,
              stroke: "currentColor",
              "stroke-width": 1.5,
              "stroke-dasharray": "2 2",
            }),
          );
      }
      picture.append(group);
      y += step;
    }
  }
  return picture;
}

// All experiments on one axis, a mark for each paired gain.
function strips(entries, width, open) {
  const narrow = width < 620,
    step = narrow ? 50 : 34,
    height = entries.length * step + 30;
  const left = narrow ? 8 : Math.min(300, width * 0.34),
    right = width - 10;
  const gains = entries.flatMap((entry) => entry.cells.map((cell) => cell.gain));
  const low = Math.min(-1, ...gains),
    high = Math.max(1, ...gains),
    pad = 0.04 * (high - low);
  const x = linear([low - pad, high + pad], [left, right]);
  const picture = canvasOf(width, height);
  axisBelow(picture, x, ticks(low, high, (right - left) / 75), 0, height - 22);
  entries.forEach((entry, index) => {
    const y = index * step + (narrow ? 32 : step / 2),
      place = `#results/${encodeURIComponent(entry.key)}`;
    const link = svg(
      "a",
      { href: place, click: () => open(entry.key) },
      svg(
        "text",
        {
          class: "strong",
          x: narrow ? 8 : left - 14,
          y: narrow ? index * step + 15 : y + 4.5,
          "text-anchor": narrow ? "start" : "end",
          fill: "currentColor",
        },
        entry.title,
      ),
    );
    picture.append(link);
    for (const cell of [...entry.cells].sort((a, b) => (verdict(a) !== "open") - (verdict(b) !== "open"))) {
      const kind = verdict(cell);
      picture.append(
        explained(
          svg(
            "g",
            { class: kind === "open" ? "quiet" : "" },
            mark(kind, x(cell.gain), y, kind === "open" ? 4 : 5.5),
          ),
          `${entry.title}, ${cell.method} (${cell.column}): ${gainText(cell)} points, ${WORDS[kind]}`,
        ),
      );
    }
  });
  return picture;
}
