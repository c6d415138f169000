// Draws the timeline: lanes (phases, faults, leader, health) and panels over one shared, zoomable time axis.
// All text goes in through textContent; nothing here builds markup from strings.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const root = document.getElementById("timeline");
  const NS = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 3", "2 3", "8 3 2 3"];
  const RIGHT = 12, SECONDS_MIN = 0.05;
  const full = [data.start, data.end];
  let view = full.slice(), cursor = null, logarithmic = true;
  const plots = [];   // {frame, draw, readout, scale}

  const node = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
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
  const duration = (s) => {
    if (s === 0) return "0 s";
    if (s < 999.5e-6) return `${short(s * 1e6)} µs`;
    if (s < 0.9995) return `${short(s * 1e3)} ms`;
    if (s < 59.95) return `${short(s)} s`;
    return `${Math.floor(Math.round(s) / 60)} min ${Math.round(s) % 60} s`;
  };
  const bytes = (value) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let index = 0;
    while (value >= 999.5 && index < units.length - 1) { value /= 1000; index += 1; }
    return `${short(value)} ${units[index]}`;
  };
  const human = (value, unit) => {
    if (value === null || value === undefined) return "–";
    if (unit === "s") return duration(value);
    if (unit === "B") return bytes(value);
    if (unit === "B/s") return `${bytes(value)}/s`;
    if (unit === "/s") return `${short(value)}/s`;
    return unit ? `${short(value)} ${unit}` : short(value);
  };
  const clock = (t, fine) => {
    const sign = t < 0 ? "-" : "", s = Math.abs(t);
    if (s < 60) return `${sign}${fine ? s.toFixed(1) : Number(s.toFixed(2))} s`;
    const seconds = fine ? (s % 60).toFixed(1).padStart(4, "0") : String(Math.round(s % 60)).padStart(2, "0");
    return `${sign}${Math.floor((fine ? s : Math.round(s)) / 60)}:${seconds}`;
  };

  // ---- scales
  const niceStep = (span, count) => {
    const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
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
  const yScale = (values, log, height) => {
    const seen = values.filter((value) => value !== null && (!log || value > 0));
    if (log && seen.length) {
      const low = seen.reduce((a, b) => Math.min(a, b)) / 1.3, high = Math.max(seen.reduce((a, b) => Math.max(a, b)) * 1.3, low * 8);
      const place = (value) => height - (Math.log10(Math.max(value, low) / low) / Math.log10(high / low)) * height;
      return { place, ticks: logTicks(low, high) };
    }
    const top = (seen.length ? seen.reduce((a, b) => Math.max(a, b)) : 0) * 1.08 || 1;
    return { place: (value) => height - (value / top) * height, ticks: ticksOf(0, top, niceStep(top, 4)) };
  };

  // ---- one frame of the shared axis: bands, markers, cursor, drag
  const frameOf = (holder, height, withAxis) => {
    const width = Math.max(holder.clientWidth, 260), left = width < 560 ? 52 : 76, bottom = withAxis ? 20 : 4;
    const x = (t) => left + ((t - view[0]) / (view[1] - view[0])) * (width - left - RIGHT);
    const t = (pixel) => view[0] + ((pixel - left) / (width - left - RIGHT)) * (view[1] - view[0]);
    const canvas = svg("svg", { viewBox: `0 0 ${width} ${height + bottom}`, width, height: height + bottom, role: "img" });
    const clip = svg("clipPath", { id: `clip${plots.length}-${Math.random().toString(36).slice(2)}` });
    clip.append(svg("rect", { x: left, y: 0, width: width - left - RIGHT, height }));
    const inside = svg("g", { "clip-path": `url(#${clip.id})` });
    canvas.append(clip, inside);
    const line = svg("line", { class: "cursor", y1: 0, y2: height, visibility: "hidden" });
    const chosen = svg("rect", { class: "chosen", y: 0, height, width: 0 });
    return { canvas, inside, x, t, width, left, height, line, chosen, right: width - RIGHT };
  };
  const finish = (holder, frame) => {
    frame.inside.append(frame.chosen, frame.line);
    holder.replaceChildren(frame.canvas);
    listen(frame);
  };
  const box = (frame, span, attributes) =>
    svg("rect", { x: frame.x(span[0]), width: Math.max(frame.x(span[1]) - frame.x(span[0]), 1.5), ...attributes });
  const timeAxis = (frame) => {
    for (const tick of ticksOf(view[0], view[1], timeStep(view[1] - view[0], (frame.right - frame.left) / 75))) {
      frame.inside.append(svg("line", { class: "grid", x1: frame.x(tick), x2: frame.x(tick), y1: 0, y2: frame.height }));
      const anchor = frame.x(tick) > frame.right - 20 ? "end" : "middle";
      frame.canvas.append(svg("text", { x: frame.x(tick), y: frame.height + 14, "text-anchor": anchor }, clock(tick)));
    }
  };
  const visible = (span) => span[1] >= view[0] && span[0] <= view[1];
  const backdrop = (frame, labels) => {
    for (const fault of data.faults) {
      if (!fault.applied || !visible(fault.applied)) continue;
      frame.inside.append(titled(box(frame, fault.applied, { class: "band", y: 0, height: frame.height }), fault.label));
      for (const edge of fault.applied) frame.inside.append(svg("line", { class: "band-edge", x1: frame.x(edge), x2: frame.x(edge), y1: 0, y2: frame.height }));
    }
    for (const phase of data.phases) {
      if (phase.start > view[0] && phase.start < view[1]) frame.inside.append(svg("line", { class: "phase-line", x1: frame.x(phase.start), x2: frame.x(phase.start), y1: 0, y2: frame.height }));
    }
    const taken = [[], []];
    const write = (row, at, text, style) => {
      const size = text.length * 6.4, start = Math.min(Math.max(at + 4, frame.left + 4), frame.right - size);
      if (!labels || taken[row].some(([from, to]) => start < to && start + size > from)) return;
      taken[row].push([start - 8, start + size + 8]);
      frame.inside.append(svg("text", { class: style, x: start, y: 12 + row * 14 }, text));
    };
    for (const fault of data.faults) if (fault.applied && visible(fault.applied)) write(0, frame.x(fault.applied[0]), fault.label, "strong");
    const rank = (mark) => (mark.kind === "guardrail" ? 0 : mark.label === "no leader" ? 2 : 1);   // who gets the room
    for (const mark of [...data.marks].sort((a, b) => rank(a) - rank(b))) {
      if (mark.t < view[0] || mark.t > view[1]) continue;
      const at = frame.x(mark.t), text = mark.kind === "leader" ? (mark.label === "no leader" ? "no leader" : `leader: ${mark.label}`) : mark.label;
      frame.inside.append(titled(svg("line", { class: mark.kind, x1: at, x2: at, y1: 0, y2: frame.height }), `${text}, at ${clock(mark.t, true)}`));
      write(1, at, text, `${mark.kind}-name`);
    }
  };

  // ---- lanes
  const MOST_ROWS = 12;
  const named = (fault) => (fault.proven ? fault.label : `${fault.label}, not proven`);
  const packed = (secondsPerPixel) => {   // faults that do not overlap share a row; each label keeps its room if it can
    const rows = [];
    for (const fault of data.faults) {
      const spans = [fault.asked, fault.applied].filter(Boolean);
      const start = Math.min(...spans.map((span) => span[0]), fault.at), end = Math.max(...spans.map((span) => span[1]), fault.at);
      let row = rows.find((candidate) => candidate.end <= start);
      if (!row) rows.push(row = { items: [] });
      row.items.push({ fault, start, end });
      row.end = Math.max(end, start + (named(fault).length * 6.4 + 10) * secondsPerPixel);
    }
    return rows.length > MOST_ROWS && secondsPerPixel ? packed(0) : rows;
  };
  const fitted = (text, room) => (text.length * 6.4 <= room ? text : room > 40 ? `${text.slice(0, Math.floor(room / 6.4) - 1)}…` : "");
  const drawLanes = (holder) => {
    const all = packed((view[1] - view[0]) / Math.max(holder.clientWidth - 88, 200)), rows = all.slice(0, MOST_ROWS), gap = 24;
    const frame = frameOf(holder, gap * (1 + rows.length + data.lanes.length) + 2, true);
    const name = (row, text) => frame.canvas.append(svg("text", { x: frame.left - 6, y: row * gap + 16, "text-anchor": "end" }, text));
    timeAxis(frame);
    const segment = (row, span, label, style) => {
      if (!visible(span)) return;
      const from = Math.max(frame.x(span[0]), frame.left), to = Math.min(frame.x(span[1]), frame.right);
      frame.inside.append(titled(box(frame, span, { class: style, y: row * gap + 3, height: gap - 6 }), `${label}: ${clock(span[0], true)} to ${clock(span[1], true)}`));
      frame.inside.append(svg("text", { class: "strong", x: from + 5, y: row * gap + 16, "pointer-events": "none" }, fitted(label, to - from - 8)));
    };
    name(0, "phase");
    for (const phase of data.phases) segment(0, [phase.start, phase.end], phase.label, "phase");
    rows.forEach((row, index) => {
      const y = (index + 1) * gap;
      if (index === 0) name(1, data.faults.length > 1 ? "faults" : "fault");
      row.items.forEach((item, place) => {
        const { fault } = item;
        if (fault.applied) frame.inside.append(box(frame, fault.applied, { class: "applied", y: y + 4, height: 8 }));
        if (fault.proven) frame.inside.append(titled(box(frame, fault.proven, { class: "proven", y: y + 4, height: 8 }), `proven in force: ${clock(fault.proven[0], true)} to ${clock(fault.proven[1], true)}`));
        if (fault.asked) frame.inside.append(titled(box(frame, fault.asked, { class: "asked", y: y + 2, height: 12 }), `asked for: ${clock(fault.asked[0], true)} to ${clock(fault.asked[1], true)}`));
        const next = row.items[place + 1];
        const from = Math.max(frame.x(item.start), frame.left), to = Math.min(next ? frame.x(next.start) : frame.right, frame.right);
        if (item.end >= view[0] && item.start <= view[1]) frame.inside.append(svg("text", { class: "strong", x: from, y: y + 24 }, fitted(named(fault), to - from)));
      });
    });
    if (all.length > rows.length) name(rows.length, `+${all.length - rows.length} rows`);
    data.lanes.forEach((lane, index) => {
      const row = 1 + rows.length + index;
      name(row, frame.left < 60 && lane.title === "Consul says" ? "Consul" : lane.title);
      for (const part of lane.segments) segment(row, [part.start, part.end], part.label, part.ok ? (["leader", "mark"].includes(lane.title) ? "phase" : "well") : "sick");
    });
    for (const mark of data.marks) {
      if (mark.kind === "guardrail") frame.inside.append(titled(svg("line", { class: "guardrail", x1: frame.x(mark.t), x2: frame.x(mark.t), y1: 0, y2: frame.height }), `${mark.label}, at ${clock(mark.t, true)}`));
    }
    finish(holder, frame);
    return frame;
  };

  // ---- panels
  const colour = (panel, series, index) =>
    series.style === "bars" ? "ce" : series.style === "faint" ? "cf" : `c${(panel.signal || panel.sides ? index : series.name === "p99" ? 1 : 0) % 8}`;
  const dash = (panel, series, index) => (series.name === "p99" ? "5 2" : panel.signal || panel.sides ? DASHES[(index + Math.floor(index / 8)) % 4] : "");
  const path = (frame, scale, times, values) => {
    let text = "", open = false;
    times.forEach((t, index) => {
      const value = values[index];
      if (value === null) { open = false; return; }
      const point = `${frame.x(t).toFixed(1)},${scale.place(value).toFixed(1)}`;
      const alone = !open && (index + 1 >= values.length || values[index + 1] === null);
      text += open ? `L${point}` : alone ? `M${point}h2` : `M${point}`;
      open = true;
    });
    return text;
  };
  const bars = (frame, scale, times, values) => {
    const half = data.bucket / 2;
    return times.map((t, index) => {
      if (!values[index]) return "";
      const from = frame.x(t - half).toFixed(1), to = frame.x(t + half).toFixed(1);
      return `M${from},${frame.height}V${scale.place(values[index]).toFixed(1)}H${to}V${frame.height}Z`;
    }).join("");
  };
  const drawPanel = (panel, holder) => {
    const frame = frameOf(holder, holder.clientWidth < 560 ? 110 : panel.labels ? 170 : 120, true);
    const shown = panel.series.flatMap((series) => {
      const times = series.t || panel.t;
      return series.v.filter((_, index) => times[index] >= view[0] && times[index] <= view[1]);
    });
    const scale = yScale(shown, panel.log && logarithmic, frame.height - (panel.labels ? 32 : 6));
    const base = frame.height - (panel.labels ? 32 : 6), lift = frame.height - base;
    const place = scale.place;
    scale.place = (value) => Math.min(place(value) + lift, frame.height - 1);
    timeAxis(frame);
    for (const tick of scale.ticks) {
      const y = scale.place(tick);
      frame.inside.append(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y, y2: y }));
      frame.canvas.append(svg("text", { x: frame.left - 6, y: Math.max(y + 4, 9), "text-anchor": "end" }, human(tick, panel.unit === "cores" ? "" : panel.unit)));
    }
    backdrop(frame, panel.labels);
    panel.series.forEach((series, index) => {
      const times = series.t || panel.t, filled = series.style === "bars";
      frame.inside.append(svg("path", {
        class: `mark ${filled ? "bars" : "series"} ${series.style === "faint" ? "faint" : ""} ${colour(panel, series, index)}`,
        d: filled ? bars(frame, scale, times, series.v) : path(frame, scale, times, series.v),
        ...(filled ? {} : { fill: "none" }), ...(dash(panel, series, index) ? { "stroke-dasharray": dash(panel, series, index) } : {}),
      }));
    });
    frame.canvas.append(svg("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.height, y2: frame.height }));
    finish(holder, frame);
    return frame;
  };
  const nearest = (times, t) => {
    let low = 0, high = times.length - 1;
    while (low < high) { const middle = (low + high) >> 1; if (times[middle] < t) low = middle + 1; else high = middle; }
    return low > 0 && t - times[low - 1] < times[low] - t ? low - 1 : low;
  };

  // ---- reading and zooming
  const readout = node("div", { class: "readout", role: "status" });
  const reset = node("button", { type: "button" }, "Whole run");
  const logButton = node("button", { type: "button", "aria-pressed": "true" }, "Log scale");
  const at = (segments, t) => (segments.find((part) => t >= part.start && t < part.end) || {}).label;
  const read = () => {
    for (const plot of plots) {
      plot.frame.line.setAttribute("visibility", cursor === null ? "hidden" : "visible");
      if (cursor !== null) for (const end of ["x1", "x2"]) plot.frame.line.setAttribute(end, plot.frame.x(cursor));
      plot.readout();
    }
    if (cursor === null) {
      readout.textContent = "Drag to zoom, double-click for the whole run, point at a curve to read it. Keys: ← → + − 0.";
      return;
    }
    const inForce = data.faults.filter((fault) => fault.applied && cursor >= fault.applied[0] && cursor < fault.applied[1]);
    const parts = [clock(cursor, true), at(data.phases, cursor), ...data.lanes.map((lane) => `${lane.title}: ${at(lane.segments, cursor) || "–"}`)];
    parts.push(inForce.length ? inForce.map((fault) => fault.label).join(", ") : "no fault in force");
    readout.textContent = parts.filter(Boolean).join(" · ");
  };
  const redraw = () => {
    for (const plot of plots) plot.frame = plot.draw();
    reset.disabled = view[0] === full[0] && view[1] === full[1];
    read();
  };
  const zoom = (from, to) => {
    const low = Math.max(Math.min(from, to), full[0]), high = Math.min(Math.max(from, to), full[1]);
    view = high - low < SECONDS_MIN ? view : [low, high];
    redraw();
  };
  const listen = (frame) => {
    const t = (event) => {
      const area = frame.canvas.getBoundingClientRect();
      const pixel = ((event.clientX - area.left) / area.width) * frame.width;
      return Math.min(Math.max(frame.t(pixel), view[0]), view[1]);
    };
    let from = null;
    frame.canvas.addEventListener("pointerdown", (event) => { from = t(event); frame.canvas.setPointerCapture(event.pointerId); });
    frame.canvas.addEventListener("pointermove", (event) => {
      cursor = t(event);
      if (from !== null) {
        for (const plot of plots) {
          plot.frame.chosen.setAttribute("x", plot.frame.x(Math.min(from, cursor)));
          plot.frame.chosen.setAttribute("width", Math.abs(plot.frame.x(cursor) - plot.frame.x(from)));
        }
      }
      read();
    });
    const end = (event) => {
      const start = from;
      from = null;
      for (const plot of plots) plot.frame.chosen.setAttribute("width", 0);
      if (start !== null && event.type === "pointerup" && Math.abs(frame.x(t(event)) - frame.x(start)) > 5) zoom(start, t(event));
    };
    frame.canvas.addEventListener("pointerup", end);
    frame.canvas.addEventListener("pointercancel", end);
    frame.canvas.addEventListener("pointerleave", () => { if (from === null) { cursor = null; read(); } });
    frame.canvas.addEventListener("dblclick", () => zoom(...full));
  };
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const span = view[1] - view[0], middle = cursor === null ? (view[0] + view[1]) / 2 : cursor;
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in moves) {
      cursor = Math.min(Math.max(middle + (moves[event.key] * span) / 60, view[0]), view[1]);
      read();
    } else if (event.key === "+" || event.key === "=") zoom(middle - span / 4, middle + span / 4);
    else if (event.key === "-") zoom(middle - span, middle + span);
    else if (event.key === "0" || event.key === "Escape") zoom(...full);
    else return;
    event.preventDefault();
  };

  // ---- the page
  const swatch = (style, extra = {}) => {
    const picture = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    picture.append(style === "line" || style.startsWith("series") ? svg("line", { class: style, x1: 0, x2: 26, y1: 5, y2: 5, "stroke-width": 2.5, ...extra }) : svg("rect", { class: style, x: 1, y: 1, width: 24, height: 8, ...extra }));
    return picture;
  };
  const addPanel = (panel) => {
    const holder = node("div", { class: "plot" }), key = node("div", { class: "key" });
    const heading = node("h3", {}, panel.title);
    if (panel.signal) heading.append(node("small", {}, panel.signal));
    const values = panel.series.map((series, index) => {
      const value = node("b"), mark = series.style === "bars" ? swatch("ce") : swatch(`series ${colour(panel, series, index)}`, dash(panel, series, index) || series.style === "faint" ? { "stroke-dasharray": dash(panel, series, index) || "2 3" } : {});
      key.append(node("span", {}, mark, `${series.name} `, value));
      return value;
    });
    root.append(node("div", { class: "panel" }, heading, key, holder));
    plots.push({
      draw: () => drawPanel(panel, holder),
      readout: () => panel.series.forEach((series, index) => {
        const times = series.t || panel.t;
        values[index].textContent = cursor === null || !times.length ? "" : human(series.v[nearest(times, cursor)], panel.unit);
      }),
    });
  };
  root.replaceChildren(node("div", { class: "bar" }, readout, logButton, reset));
  const lanes = node("div", { class: "plot" });
  const legend = node("div", { class: "swatches" });
  const explained = [["asked", "asked for"], ["applied", "applied"], ["proven", "proven in force"]];
  if (data.faults.length) legend.append(...explained.map(([style, text]) => node("span", {}, swatch(style), text)));
  root.append(node("div", { class: "panel" }, lanes, legend));
  plots.push({ draw: () => drawLanes(lanes), readout: () => {} });
  data.panels.forEach(addPanel);
  root.tabIndex = 0;
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Timeline of the run; its figures are in the tables of this page");
  root.addEventListener("keydown", onKey);
  reset.addEventListener("click", () => zoom(...full));
  logButton.addEventListener("click", () => {
    logarithmic = !logarithmic;
    logButton.setAttribute("aria-pressed", String(logarithmic));
    redraw();
  });
  let waiting = 0, drawnAt = 0;
  new ResizeObserver(() => {
    if (root.clientWidth === drawnAt) return;
    drawnAt = root.clientWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redraw);
  }).observe(root);
  window.addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
  redraw();
})();
