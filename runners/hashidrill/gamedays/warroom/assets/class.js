// The trainer's page over a class: a table of the games and a lane for each. Every text goes in through textContent.
import { clock, drawLanes, node } from "./charts.js";

const $ = (id) => document.getElementById(id);
const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const SILENT_MS = 12000;
const TONES = { paged: "bad", diagnosed: "odd", mitigated: "good", "gave up": "bad", "looking around": "known" };
const STYLES = { paged: "sick", diagnosed: "applied", mitigated: "well" };
const RESULTS = { passed: "good", partly: "odd", failed: "bad" };
const HEADINGS = ["trainee", "scenario", "state", "since the pager", "score"];

let state = null, heardAt = 0;
const source = new EventSource("events");   // the browser connects again by itself
const heard = () => { heardAt = Date.now(); draw(); };
source.addEventListener("whole", (event) => { state = JSON.parse(event.data).data; heard(); });
source.addEventListener("beat", heard);
source.addEventListener("error", () => { if (state && state.over) source.close(); draw(); });
setInterval(() => draw(), 1000);
addEventListener("resize", () => draw());

const score = (row) => (row.result ? row.points === null || row.result === "not counted" ? row.result : `${row.result}, ${row.points}` : "–");
const badge = (text, tone) => (tone ? node("span", { class: `badge ${tone}` }, text) : text);
const cellsOf = (row) => [
  row.name, row.scenario || "–", badge(row.state, TONES[row.state]),
  row.since_page_s === null ? "–" : clock(row.since_page_s), badge(score(row), RESULTS[row.result]),
];
const rowOf = (row) => node("tr", {}, ...cellsOf(row).map((cell, at) => node("td", { "data-of": HEADINGS[at] }, node("div", {}, cell))));
const drawSeats = () => {
  const head = node("tr", {}, ...HEADINGS.map((title) => node("th", { scope: "col" }, title)));
  $("seats").replaceChildren(node("div", { class: "scroll" }, node("table", {}, node("thead", {}, head), node("tbody", {}, ...state.rows.map(rowOf)))));
};
const labelOf = (row, word, last) => (word === "over" && last && row.result ? `over: ${score(row)}` : word);
const drawCourse = () => {
  const lanes = state.rows.map((row) => ({
    title: row.name.length > 11 ? `${row.name.slice(0, 10)}…` : row.name,
    segments: row.spans.map(([word, start, end], at) => ({ start, end, label: labelOf(row, word, at === row.spans.length - 1), style: STYLES[word] || "phase" })),
  }));
  const end = Math.max(state.now, 60);
  drawLanes($("lanes"), { phases: [{ label: "class", start: 0, end: state.now }], faults: [], lanes, marks: [] }, [0, end]);
};
const counts = () => {
  const found = new Map();
  for (const row of state.rows) found.set(row.state, (found.get(row.state) || 0) + 1);
  return [...found].map(([word, number]) => `${number} ${word}`).join(", ");
};
let about = "";
const draw = () => {
  const lost = Date.now() - heardAt > SILENT_MS, over = Boolean(state && state.over), pill = $("connection");
  pill.className = `pill ${over ? "odd" : !state ? "odd" : lost ? "bad" : "good"}`;
  setText(pill, over ? "over" : !state ? "connecting" : lost ? "no connection, trying again" : "live");
  $("notice").hidden = !(over || (state && lost));
  setText($("notice"), over ? "The trainer's command has ended. This is the last state. Running games continue." : "No update has come for a while. You see the last state. The games do not depend on this page.");
  if (!state) return;
  setText($("title"), `Class: ${state.title}`);
  document.title = `${counts()} · class`;
  setText($("phase"), `${state.rows.length} seats: ${counts()}`);
  if (about !== JSON.stringify(state.about)) {
    about = JSON.stringify(state.about);
    $("about").replaceChildren(...state.about.map(([name, text]) => node("div", {}, node("dt", {}, name), node("dd", {}, text))));
  }
  drawSeats();
  drawCourse();
};
