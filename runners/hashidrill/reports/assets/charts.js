// Draws a run over time, for the report, the war room's page and the score card: lanes of states, and curves.
// Plain SVG; every text goes in through textContent. Times are seconds into the run, on one axis.
//   run: {phases, faults, lanes, marks}; a span has start and end, a fault has asked, applied and proven as [from, to]
//   panel: {unit, log, top, height, labels, signal, sides, bucket, t, series: [{name, v, t, style, colour}]}
const NS = "http://www.w3.org/2000/svg";
const RIGHT = 12, LANE = 24, MOST_ROWS = 12, LETTER = 6.4;
const DASHES = ["", "7 3", "2 3", "8 3 2 3"];
const NEVER = "never";

export const node = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
};
const svg = (tag, attributes = {}, text = null) => {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
};
const titled = (shape, text) => { shape.append(svg("title", {}, text)); return shape; };

// ---- numbers as people read them
const short = (value) => String(Number(value.toPrecision(value >= 100 ? 3 : 2)));
export const clock = (t, fine = false) => {
  const sign = t < 0 ? "-" : "", s = Math.abs(t);
  if (s < 60) return `${sign}${fine ? s.toFixed(1) : Number(s.toFixed(2))} s`;
  const seconds = fine ? (s % 60).toFixed(1).padStart(4, "0") : String(Math.floor(s % 60)).padStart(2, "0");
  return `${sign}${Math.floor(s / 60)}:${seconds}`;
};
const bytes = (value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  while (value >= 999.5 && index < units.length - 1) { value /= 1000; index += 1; }
  return `${short(value)} ${units[index]}`;
};
export const human = (value, unit) => {
  if (value === null || value === undefined) return "–";
  if (value === NEVER) return "never";
  if (unit === "s") {
    if (value === 0) return "0 s";
    if (value < 999.5e-6) return `${short(value * 1e6)} µs`;
    if (value < 0.9995) return `${short(value * 1e3)} ms`;
    return value < 59.95 ? `${short(value)} s` : `${Math.floor(Math.round(value) / 60)} min ${Math.round(value) % 60} s`;
  }
  if (unit === "share") return value > 0 && value < 0.001 ? "<0.1%" : `${short(value * 100)}%`;
  if (unit === "B") return bytes(value);
  if (unit === "B/s") return `${bytes(value)}/s`;
  if (unit === "/s") return `${short(value)}/s`;
  return unit ? `${short(value)} ${unit}` : short(value);
};

// ---- scales
const niceStep = (span, count) => {
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw * 0.999) || raw;
};
const timeStep = (span, count) =>
  [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200].find((step) => step >= span / count) || niceStep(span, count);
const ticksOf = (low, high, step) => {
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) ticks.push(n * step);
  return ticks;
};
const logTicks = (low, high) => {
  const decades = Math.log10(high / low), factors = decades > 3.6 ? [1] : decades > 1.6 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
};
const yScale = (values, log, height, top) => {
  const seen = values.filter((value) => typeof value === "number" && (!log || value > 0));
  const least = seen.reduce((a, b) => Math.min(a, b), Infinity), most = seen.reduce((a, b) => Math.max(a, b), 0);
  if (log && seen.length) {
    const low = least / 1.3, high = Math.max(most * 1.3, low * 8);
    return { place: (value) => height - (Math.log10(Math.max(value, low) / low) / Math.log10(high / low)) * height, ticks: logTicks(low, high) };
  }
  const high = top || most * 1.08 || 1;
  return { place: (value) => height - (value / high) * height, ticks: ticksOf(0, high, niceStep(high, 4)) };
};

// ---- one frame over the shared axis: bands, marks, cursor
let frames = 0;
const frameOf = (holder, height, view) => {
  const width = Math.max(holder.clientWidth || (holder.closest("section") || holder).clientWidth, 260), left = width < 560 ? 58 : 76;
  const x = (t) => left + ((t - view[0]) / (view[1] - view[0])) * (width - left - RIGHT);
  const t = (pixel) => view[0] + ((pixel - left) / (width - left - RIGHT)) * (view[1] - view[0]);
  const canvas = svg("svg", { viewBox: `0 0 ${width} ${height + 20}`, width, height: height + 20, role: "img" });
  const clip = svg("clipPath", { id: `clip${(frames += 1)}` });
  clip.append(svg("rect", { x: left, y: 0, width: width - left - RIGHT, height }));
  const inside = svg("g", { "clip-path": `url(#${clip.id})` });
  canvas.append(clip, inside);
  const line = svg("line", { class: "cursor", y1: 0, y2: height, visibility: "hidden" });
  const chosen = svg("rect", { class: "chosen", y: 0, height, width: 0 });
  const frame = { canvas, inside, x, t, width, left, height, line, chosen, view, right: width - RIGHT };
  for (const tick of ticksOf(view[0], view[1], timeStep(view[1] - view[0], (frame.right - left) / 75))) {
    inside.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height }));
    canvas.append(svg("text", { x: x(tick), y: height + 14, "text-anchor": x(tick) > frame.right - 20 ? "end" : "middle" }, clock(tick)));
  }
  return frame;
};
const finish = (holder, frame) => {
  frame.inside.append(frame.chosen, frame.line);
  holder.replaceChildren(frame.canvas);
  return frame;
};
export const timeAt = (frame, event) => {
  const area = frame.canvas.getBoundingClientRect();
  return Math.min(Math.max(frame.t(((event.clientX - area.left) / area.width) * frame.width), frame.view[0]), frame.view[1]);
};
export const pointAt = (frame, t) => {
  frame.line.setAttribute("visibility", t === null ? "hidden" : "visible");
  if (t !== null) for (const end of ["x1", "x2"]) frame.line.setAttribute(end, frame.x(t));
};
const box = (frame, span, attributes) =>
  svg("rect", { x: frame.x(span[0]), width: Math.max(frame.x(span[1]) - frame.x(span[0]), 1.5), ...attributes });
const upright = (frame, t, style) => svg("line", { class: style, x1: frame.x(t), x2: frame.x(t), y1: 0, y2: frame.height });
const visible = (frame, span) => span[1] >= frame.view[0] && span[0] <= frame.view[1];
const backdrop = (frame, run, labels) => {
  const faults = run.faults.filter((fault) => fault.applied && visible(frame, fault.applied));
  for (const fault of faults) {
    frame.inside.append(titled(box(frame, fault.applied, { class: "band", y: 0, height: frame.height }), fault.label));
    for (const edge of fault.applied) frame.inside.append(upright(frame, edge, "band-edge"));
  }
  for (const phase of run.phases) if (phase.start > frame.view[0] && phase.start < frame.view[1]) frame.inside.append(upright(frame, phase.start, "phase-line"));
  const taken = [[], []];
  const write = (row, at, text, style) => {
    const size = text.length * LETTER, start = Math.min(Math.max(at + 4, frame.left + 4), frame.right - size);
    if (!labels || start < frame.left || taken[row].some(([from, to]) => start < to && start + size > from)) return;
    taken[row].push([start - 8, start + size + 8]);
    frame.inside.append(svg("text", { class: style, x: start, y: 12 + row * 14 }, text));
  };
  for (const fault of faults) write(0, frame.x(fault.applied[0]), fault.label, "strong");
  const rank = (mark) => (mark.kind === "guardrail" ? 0 : mark.label === "no leader" ? 2 : 1);   // which gets the room
  for (const mark of [...run.marks].sort((a, b) => rank(a) - rank(b))) {
    if (!visible(frame, [mark.t, mark.t])) continue;
    const text = mark.kind === "leader" && mark.label !== "no leader" ? `leader: ${mark.label}` : mark.label;
    frame.inside.append(titled(upright(frame, mark.t, mark.kind), `${text}, at ${clock(mark.t, true)}`));
    write(1, frame.x(mark.t), text, `${mark.kind}-name`);
  }
};

// ---- lanes
const named = (fault) => (fault.proven ? fault.label : `${fault.label}, not proven`);
const packed = (faults, secondsPerPixel) => {   // faults that do not overlap share a row; each label keeps its room if it can
  const rows = [];
  for (const fault of faults) {
    const spans = [fault.asked, fault.applied].filter(Boolean);
    const start = Math.min(...spans.map((span) => span[0]), fault.at), end = Math.max(...spans.map((span) => span[1]), fault.at);
    let row = rows.find((candidate) => candidate.end <= start);
    if (!row) rows.push(row = { items: [] });
    row.items.push({ fault, start, end });
    row.end = Math.max(end, start + (named(fault).length * LETTER + 10) * secondsPerPixel);
  }
  return rows.length > MOST_ROWS && secondsPerPixel ? packed(faults, 0) : rows;
};
const fitted = (text, room) => (text.length * LETTER <= room ? text : room > 40 ? `${text.slice(0, Math.floor(room / LETTER) - 1)}…` : "");
export const drawLanes = (holder, run, view) => {
  const all = packed(run.faults, (view[1] - view[0]) / Math.max(holder.clientWidth - 88, 200)), rows = all.slice(0, MOST_ROWS);
  const frame = frameOf(holder, LANE * (1 + rows.length + run.lanes.length) + 2, view);
  const fine = (span) => `${clock(span[0], true)} to ${clock(span[1], true)}`;
  const name = (row, text) => frame.canvas.append(svg("text", { x: frame.left - 6, y: row * LANE + 16, "text-anchor": "end" }, frame.left < 60 ? text.split(" ")[0].slice(0, 9) : text.slice(0, 12)));
  const segment = (row, span, label, style) => {
    if (!visible(frame, span)) return;
    const from = Math.max(frame.x(span[0]), frame.left), to = Math.min(frame.x(span[1]), frame.right);
    frame.inside.append(titled(box(frame, span, { class: style, y: row * LANE + 3, height: LANE - 6 }), `${label}: ${fine(span)}`));
    frame.inside.append(svg("text", { class: "strong", x: from + 5, y: row * LANE + 16, "pointer-events": "none" }, fitted(label, to - from - 8)));
  };
  name(0, "phase");
  for (const phase of run.phases) segment(0, [phase.start, phase.end], phase.label, "phase");
  rows.forEach((row, index) => {
    const y = (index + 1) * LANE;
    if (index === 0) name(1, run.faults.length > 1 ? "faults" : "fault");
    row.items.forEach((item, place) => {
      const { fault } = item;
      if (fault.applied) frame.inside.append(box(frame, fault.applied, { class: "applied", y: y + 4, height: 8 }));
      if (fault.proven) frame.inside.append(titled(box(frame, fault.proven, { class: "proven", y: y + 4, height: 8 }), `proven in force: ${fine(fault.proven)}`));
      if (fault.asked) frame.inside.append(titled(box(frame, fault.asked, { class: "asked", y: y + 2, height: 12 }), `asked for: ${fine(fault.asked)}`));
      const next = row.items[place + 1];
      const from = Math.max(frame.x(item.start), frame.left), to = Math.min(next ? frame.x(next.start) : frame.right, frame.right);
      if (visible(frame, [item.start, item.end])) frame.inside.append(svg("text", { class: "strong", x: from, y: y + 24 }, fitted(named(fault), to - from)));
    });
  });
  if (all.length > rows.length) name(rows.length, `+${all.length - rows.length} rows`);
  run.lanes.forEach((lane, index) => {
    name(1 + rows.length + index, lane.title);
    for (const part of lane.segments) segment(1 + rows.length + index, [part.start, part.end], part.label, part.style || (part.ok ? "well" : "sick"));
  });
  for (const mark of run.marks) {
    if (mark.kind === "guardrail") frame.inside.append(titled(upright(frame, mark.t, "guardrail"), `${mark.label}, at ${clock(mark.t, true)}`));
  }
  return finish(holder, frame);
};

// ---- curves
const many = (panel) => Boolean(panel.signal || panel.sides);
const colourOf = (panel, series, index) =>
  series.colour || (series.style === "bars" ? "ce" : series.style === "faint" ? "cf" : `c${many(panel) ? index % 8 : series.name === "p99" ? 1 : 0}`);
const dashOf = (panel, series, index) =>
  series.style === "faint" ? "2 3" : series.name === "p99" ? "5 2" : many(panel) ? DASHES[(index + Math.floor(index / 8)) % 4] : "";
const curve = (frame, scale, times, values) => {
  let text = "", open = false;
  times.forEach((t, index) => {
    const value = values[index];
    if (typeof value !== "number") { open = false; return; }
    const point = `${frame.x(t).toFixed(1)},${scale.place(value).toFixed(1)}`;
    const alone = !open && typeof values[index + 1] !== "number";
    text += open ? `L${point}` : alone ? `M${point}h2` : `M${point}`;
    open = true;
  });
  return text;
};
const bars = (frame, scale, times, values, half) => times.map((t, index) => {
  if (!(values[index] > 0)) return "";
  const from = frame.x(t - half).toFixed(1), to = frame.x(t + half).toFixed(1);
  return `M${from},${frame.height}V${scale.place(values[index]).toFixed(1)}H${to}V${frame.height}Z`;
}).join("");
export const drawPanel = (holder, panel, run, view) => {
  const frame = frameOf(holder, panel.height || (holder.clientWidth < 560 ? 110 : panel.labels ? 160 : 120), view);
  const timesOf = (series) => series.t || panel.t, half = panel.bucket / 2, lift = panel.labels ? 32 : 6;
  const shown = panel.series.flatMap((series) => series.v.filter((_, index) => timesOf(series)[index] >= view[0] - half && timesOf(series)[index] <= view[1] + half));
  const scale = yScale(shown, panel.log, frame.height - lift, panel.top), place = scale.place;
  scale.place = (value) => Math.min(place(value) + lift, frame.height - 1);
  for (const tick of scale.ticks) {
    const y = scale.place(tick);
    frame.inside.append(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y, y2: y }));
    frame.canvas.append(svg("text", { x: frame.left - 6, y: Math.max(y + 4, 9), "text-anchor": "end" }, human(tick, panel.unit === "cores" ? "" : panel.unit)));
  }
  backdrop(frame, run, panel.labels);
  panel.series.forEach((series, index) => {
    const times = timesOf(series), filled = series.style === "bars", dash = dashOf(panel, series, index);
    frame.inside.append(svg("path", {
      class: `mark ${filled ? "bars" : "series"} ${series.style === "faint" ? "faint" : ""} ${colourOf(panel, series, index)}`,
      d: filled ? bars(frame, scale, times, series.v, half) : curve(frame, scale, times, series.v),
      ...(filled ? {} : { fill: "none" }), ...(dash ? { "stroke-dasharray": dash } : {}),
    }));
    series.v.forEach((value, at) => {   // what is never served has no height: a block along the top
      if (value === NEVER) frame.inside.append(box(frame, [times[at] - half, times[at] + half], { class: "never", y: 0, height: 4 }));
    });
  });
  frame.canvas.append(svg("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.height, y2: frame.height }));
  return finish(holder, frame);
};
export const nearest = (times, t) => {
  let low = 0, high = times.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (times[middle] < t) low = middle + 1; else high = middle; }
  return low > 0 && t - times[low - 1] < times[low] - t ? low - 1 : low;
};

// ---- keys
export const swatch = (style, dash = "") => {
  const picture = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
  const line = style.startsWith("series");
  picture.append(line ? svg("line", { class: style, x1: 0, x2: 26, y1: 5, y2: 5, "stroke-width": 2.5, ...(dash ? { "stroke-dasharray": dash } : {}) }) : svg("rect", { class: style, x: 1, y: 1, width: 24, height: 8 }));
  return picture;
};
// a panel with its heading and key; `values` take the figures under the cursor
export const panelFrame = (panel) => {
  const holder = node("div", { class: "plot" }), key = node("div", { class: "key" });
  const heading = node("h3", {}, panel.unit === "cores" ? `${panel.title} (cores)` : panel.title, panel.signal && panel.signal !== panel.title ? node("small", {}, panel.signal) : null);
  const values = panel.series.map((series, index) => {
    const value = node("b");
    key.append(node("span", {}, swatch(series.style === "bars" ? "ce" : `series ${colourOf(panel, series, index)}`, dashOf(panel, series, index)), `${series.name} `, value));
    return value;
  });
  return { element: node("div", { class: "panel" }, heading, key, holder), holder, values };
};
