// Draws a run over time: lanes of states, and curves. Plain SVG; every text goes in through textContent.
const NS = "http://www.w3.org/2000/svg";
const RIGHT = 10;
const NEVER = "never";

export const svg = (tag, attributes = {}, text = null) => {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
};

// ---- numbers as people read them
const short = (value) => String(Number(value.toPrecision(value >= 100 ? 3 : 2)));
export const clock = (t) => `${t < 0 ? "-" : ""}${Math.floor(Math.abs(t) / 60)}:${String(Math.floor(Math.abs(t) % 60)).padStart(2, "0")}`;
export const human = (value, unit) => {
  if (value === null || value === undefined) return "–";
  if (value === NEVER) return "never";
  if (unit === "s") {
    if (value === 0) return "0 s";
    if (value < 999.5e-6) return `${short(value * 1e6)} µs`;
    if (value < 0.9995) return `${short(value * 1e3)} ms`;
    return value < 60 ? `${short(value)} s` : clock(value);
  }
  if (unit === "share") return value > 0 && value < 0.001 ? "<0.1%" : `${short(value * 100)}%`;
  if (unit === "B" || unit === "B/s") {
    const names = ["B", "kB", "MB", "GB", "TB"];
    let index = 0, left = value;
    while (left >= 999.5 && index < names.length - 1) { left /= 1000; index += 1; }
    return `${short(left)} ${names[index]}${unit === "B/s" ? "/s" : ""}`;
  }
  return unit === "/s" ? `${short(value)}/s` : unit ? `${short(value)} ${unit}` : short(value);
};

// ---- scales
const niceStep = (span, count) => {
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw * 0.999) || raw;
};
const timeStep = (span, count) => [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200].find((step) => step >= span / count) || niceStep(span, count);
const ticksOf = (high, step) => {
  const ticks = [];
  for (let n = 0; n * step <= high * 1.0001; n += 1) ticks.push(n * step);
  return ticks;
};
const linear = (values, height, top) => {
  const high = top || (values.length ? values.reduce((a, b) => Math.max(a, b)) : 0) * 1.1 || 1;
  return { place: (value) => height - (value / high) * height, ticks: ticksOf(high, niceStep(high, 2.5)) };
};
const logarithmic = (values, height) => {
  const seen = values.filter((value) => value > 0);
  if (!seen.length) return linear([], height);
  const low = seen.reduce((a, b) => Math.min(a, b)) / 1.3;
  const high = Math.max(seen.reduce((a, b) => Math.max(a, b)) * 1.4, low * 8);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) ticks.push(10 ** power);
  return {
    place: (value) => height - (Math.log10(Math.max(value, low) / low) / Math.log10(high / low)) * height,
    ticks: ticks.filter((tick) => tick >= low && tick <= high),
  };
};

// ---- a frame over the time axis that all drawings share
const frameOf = (holder, height, view, withAxis) => {
  const width = Math.max(holder.clientWidth, 240), left = width < 560 ? 54 : 70, bottom = withAxis ? 18 : 4;
  const x = (t) => left + ((t - view[0]) / (view[1] - view[0])) * (width - left - RIGHT);
  const canvas = svg("svg", { viewBox: `0 0 ${width} ${height + bottom}`, width, height: height + bottom, "aria-hidden": "true" });
  const frame = { canvas, x, width, left, height, view, right: width - RIGHT };
  if (withAxis) {
    const step = timeStep(view[1] - view[0], (frame.right - left) / 70);
    for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
      canvas.append(svg("line", { class: "grid", x1: x(t), x2: x(t), y1: 0, y2: height }));
      canvas.append(svg("text", { x: x(t), y: height + 13, "text-anchor": x(t) > frame.right - 16 ? "end" : "middle" }, clock(t)));
    }
  }
  return frame;
};
const box = (frame, from, to, attributes) => {
  const start = Math.max(frame.x(from), frame.left), end = Math.min(frame.x(to), frame.right);
  return end < start ? null : svg("rect", { x: start, width: Math.max(end - start, 1.5), ...attributes });
};
const add = (frame, ...shapes) => frame.canvas.append(...shapes.filter(Boolean));
const ended = (span, now) => (span.end === null || span.end === undefined ? now : span.end);

const backdrop = (frame, run) => {
  for (const fault of run.faults) add(frame, box(frame, fault.at, ended(fault, run.now), { class: "band", y: 0, height: frame.height }));
  for (const moment of run.moments) {
    if (moment.t >= frame.view[0] && moment.t <= frame.view[1]) add(frame, svg("line", { class: "moment", x1: frame.x(moment.t), x2: frame.x(moment.t), y1: 0, y2: frame.height }));
  }
};
const withCursor = (holder, frame, cursor) => {
  if (cursor !== null && cursor >= frame.view[0] && cursor <= frame.view[1]) {
    add(frame, svg("line", { class: "cursor", x1: frame.x(cursor), x2: frame.x(cursor), y1: 0, y2: frame.height }));
  }
  holder.replaceChildren(frame.canvas);
  holder.at = (pixel) => frame.view[0] + ((pixel - frame.left) / (frame.right - frame.left)) * (frame.view[1] - frame.view[0]);
};

// ---- lanes
const LANE = 22;
const rowsOf = (run) => {
  const rows = [{ title: "phase", spans: run.phases.map((span) => ({ ...span, label: span.name, style: "phase" })) }];
  for (const [title, spans] of Object.entries(run.leaders)) {
    rows.push({ title, spans: spans.map((span, index) => ({
      start: span.start, end: index + 1 < spans.length ? spans[index + 1].start : run.now, label: span.name || "none", style: span.name ? "well" : "sick",
    })) });
  }
  for (const mark of run.marks) rows.push({ title: "mark", spans: [{ ...mark, style: "mark" }] });
  return rows;
};
export const drawLanes = (holder, run, view, cursor) => {
  const rows = rowsOf(run), faults = run.faults.slice(-12);
  const frame = frameOf(holder, (rows.length + faults.length) * LANE, view, true);
  let y = 0;
  const title = (text) => add(frame, svg("text", { x: frame.left - 6, y: y + 15, "text-anchor": "end" }, text.slice(0, 10)));
  const label = (text, from, to) => {
    const room = Math.min(frame.x(to), frame.right) - Math.max(frame.x(from), frame.left);
    if (room < text.length * 6.6) return;
    add(frame, svg("text", { class: "strong", x: Math.max(frame.x(from), frame.left) + 4, y: y + 15 }, text));
  };
  for (const row of rows) {
    title(row.title);
    for (const span of row.spans) {
      const end = ended(span, run.now);
      const shape = box(frame, span.start, end, { class: span.style, y: y + 2, height: LANE - 4, rx: 2 });
      if (!shape) continue;
      shape.append(svg("title", {}, span.label));
      add(frame, shape);
      label(span.label, span.start, end);
    }
    y += LANE;
  }
  for (const fault of faults) {
    const end = ended(fault, run.now);
    title("fault");
    add(frame, box(frame, fault.at, end, { class: "applied", y: y + 5, height: LANE - 10 }));
    if (fault.proven !== null) add(frame, box(frame, fault.proven, end, { class: "proven", y: y + 5, height: LANE - 10 }));
    const after = frame.x(end) + 6, before = Math.max(frame.x(fault.at), frame.left) - 6, size = fault.label.length * 6.6;
    if (after + size < frame.right) add(frame, svg("text", { class: "strong", x: after, y: y + 15 }, fault.label));
    else if (before - size > frame.left) add(frame, svg("text", { class: "strong", x: before, y: y + 15, "text-anchor": "end" }, fault.label));
    y += LANE;
  }
  withCursor(holder, frame, cursor);
};

// ---- curves
const curve = (frame, scale, values, width) => {
  let drawn = "", pen = false;
  values.forEach((value, index) => {
    const t = (index + 0.5) * width;
    if (typeof value !== "number" || t < frame.view[0] || t > frame.view[1]) { pen = false; return; }
    drawn += `${pen ? "L" : "M"}${frame.x(t).toFixed(1)} ${scale.place(value).toFixed(1)}`;
    if (!pen) drawn += "h.01";
    pen = true;
  });
  return drawn;
};
const inView = (values, width, view) => values.filter((value, index) => typeof value === "number" && (index + 1) * width >= view[0] && index * width <= view[1]);

// panel: {unit, log, top, height, bars, series: [{style, values}]}
export const drawPanel = (holder, panel, run, view, cursor) => {
  const frame = frameOf(holder, panel.height, view, true), width = run.width;
  const shown = panel.series.flatMap((series) => inView(series.values, width, view));
  const scale = panel.log ? logarithmic(shown, frame.height) : linear(shown, frame.height, panel.top);
  backdrop(frame, run);
  for (const tick of scale.ticks) {
    const y = scale.place(tick);
    add(frame, svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y, y2: y }));
    add(frame, svg("text", { x: frame.left - 6, y: Math.min(Math.max(y + 4, 9), frame.height), "text-anchor": "end" }, human(tick, panel.unit === "cores" ? "" : panel.unit)));
  }
  for (const series of panel.series) {
    if (panel.bars) {
      const base = frame.height;
      series.values.forEach((value, index) => {
        if (typeof value !== "number" || value <= 0) return;
        const y = Math.min(scale.place(value), base - 2);
        add(frame, box(frame, index * width, (index + 1) * width, { class: series.style, y, height: base - y }));
      });
    } else {
      add(frame, svg("path", { class: `line ${series.style}`, d: curve(frame, scale, series.values, width) }));
    }
    series.values.forEach((value, index) => {   // what is never served has no height: a block along the top
      if (value === NEVER) add(frame, box(frame, index * width, (index + 1) * width, { class: "never", y: 0, height: 4 }));
    });
  }
  add(frame, svg("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.height, y2: frame.height }));
  withCursor(holder, frame, cursor);
};
