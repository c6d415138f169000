// The timeline of a report: charts.js draws, this file zooms and reads. Both become one script.
const data = JSON.parse(document.getElementById("timeline-data").textContent);
const root = document.getElementById("timeline");
const SECONDS_MIN = 0.05;
const full = [data.start, data.end];
let view = full.slice(), cursor = null, logarithmic = true;
const plots = [];   // {holder, draw, read, frame}

const readout = node("div", { class: "readout", role: "status" });
const reset = node("button", { type: "button" }, "Whole run");
const logButton = node("button", { type: "button", "aria-pressed": "true" }, "Log scale");
const at = (segments, t) => (segments.find((part) => t >= part.start && t < part.end) || {}).label;
const read = () => {
  for (const plot of plots) { pointAt(plot.frame, cursor); plot.read(); }
  if (cursor === null) {
    readout.textContent = `${data.clock || "Seconds into the run."} Drag to zoom, double-click for the whole run, point at a curve to read it. Keys: ← → + − 0.`;
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
const listen = (plot) => {
  let from = null;
  const on = (type, act) => plot.holder.addEventListener(type, act);
  on("pointerdown", (event) => { from = timeAt(plot.frame, event); plot.holder.setPointerCapture(event.pointerId); });
  on("pointermove", (event) => {
    cursor = timeAt(plot.frame, event);
    for (const { frame } of from === null ? [] : plots) {
      frame.chosen.setAttribute("x", frame.x(Math.min(from, cursor)));
      frame.chosen.setAttribute("width", Math.abs(frame.x(cursor) - frame.x(from)));
    }
    read();
  });
  const end = (event) => {
    const start = from, stop = timeAt(plot.frame, event);
    from = null;
    for (const { frame } of plots) frame.chosen.setAttribute("width", 0);
    if (start !== null && event.type === "pointerup" && Math.abs(plot.frame.x(stop) - plot.frame.x(start)) > 5) zoom(start, stop);
  };
  on("pointerup", end);
  on("pointercancel", end);
  on("pointerleave", () => { if (from === null) { cursor = null; read(); } });
  on("dblclick", () => zoom(...full));
};
root.addEventListener("keydown", (event) => {
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
});

const add = (holder, draw, reads = () => {}) => {
  const plot = { holder, draw, read: reads };
  plots.push(plot);
  listen(plot);
};
const addPanel = (panel, parent) => {
  const made = panelFrame(panel);
  parent.append(made.element);
  const draw = () => drawPanel(made.holder, { ...panel, bucket: data.bucket, log: panel.log && logarithmic }, data, view);
  add(made.holder, draw, () => panel.series.forEach((series, index) => {
    const times = series.t || panel.t;
    made.values[index].textContent = cursor === null || !times.length ? "" : human(series.v[nearest(times, cursor)], panel.unit);
  }));
};
const lanes = node("div", { class: "plot" }), legend = node("div", { class: "swatches" });
const explained = [["asked", "asked for"], ["applied", "applied"], ["proven", "proven in force"]];
if (data.faults.length) legend.append(...explained.map(([style, text]) => node("span", {}, swatch(style), text)));
root.replaceChildren(node("div", { class: "bar" }, readout, logButton, reset), node("div", { class: "panel" }, lanes, legend));
add(lanes, () => drawLanes(lanes, data, view));
const folded = data.panels.filter((panel) => !panel.chosen);
for (const panel of data.panels) if (panel.chosen) addPanel(panel, root);
if (folded.length) {
  const titles = [...new Set(folded.map((panel) => panel.title))], rest = titles.length > 4 ? " and others" : "";
  const more = node("details", {}, node("summary", {}, `${folded.length} more ${folded.length === 1 ? "chart" : "charts"}: ${titles.slice(0, 4).join(", ")}${rest}`));
  root.append(more);
  for (const panel of folded) addPanel(panel, more);
  more.addEventListener("toggle", redraw);
}
root.tabIndex = 0;
root.setAttribute("role", "group");
root.setAttribute("aria-label", "Timeline of the run; its figures are in the tables of this page");
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
