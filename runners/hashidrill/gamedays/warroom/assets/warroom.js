// The page holds a copy of one document that the server changes, and draws it. Every text goes in through textContent.
import { clock as fine, drawLanes, drawPanel, human, nearest, node, panelFrame, pointAt, timeAt } from "./charts.js";

const $ = (id) => document.getElementById(id);
const clock = (t) => fine(Math.floor(t));
const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const show = (element, shown) => { if (element.hidden === shown) element.hidden = !shown; };

let state = null, number = null, missed = 0, cursor = null, recent = false;

// ---- the stream
const SILENT_MS = 12000, RECENT_S = 120;
let source = null, heardAt = 0, connection = "connecting", lostAt = 0;
const put = (tree, path, value) => {
  let place = tree;
  for (const key of path.slice(0, -1)) place = place[key];
  const last = path[path.length - 1];
  if (Array.isArray(place)) while (place.length < last) place.push(null);
  place[last] = value;
};
const connect = () => {
  if (source) source.close();
  heardAt = Date.now();
  source = new EventSource(number === null ? "events" : `events?after=${number}`);
  const taken = (event) => { heardAt = Date.now(); connection = "live"; if (event.lastEventId) number = Number(event.lastEventId); };
  source.addEventListener("whole", (event) => {
    const said = JSON.parse(event.data);
    taken(event);
    missed += said.missed;
    state = said.data;
    later();
  });
  source.addEventListener("changes", (event) => {
    if (event.lastEventId && number !== null && Number(event.lastEventId) <= number) return;   // had it before
    const said = JSON.parse(event.data);
    taken(event);
    for (const [path, value] of said.data) put(state, path, value);
    later();
  });
  source.addEventListener("beat", (event) => { taken(event); later(); });
  source.addEventListener("error", () => {
    if (state && state.over) { source.close(); connection = "over"; } else if (connection !== "lost") { connection = "lost"; lostAt = Date.now(); }
    later();
  });
};
setInterval(() => {
  if (state && state.over) { source.close(); connection = "over"; later(); return; }
  const closed = source.readyState === EventSource.CLOSED;
  if (closed || Date.now() - heardAt > SILENT_MS) {
    if (connection !== "lost") { connection = "lost"; lostAt = Date.now(); }
    connect();
  }
  later();
}, 1000);

const send = async (what, body) => {
  try {
    const answer = await fetch(what, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    return { ok: answer.ok, status: answer.status, said: (await answer.json()).said };
  } catch {
    return { ok: false, said: "The server did not answer. Is the run over?" };
  }
};

// ---- what is drawn
const TONES = { PASS: "good", FAIL: "bad", INVALID: "odd", held: "good", broken: "bad", fixed: "bad", invalid: "odd", known: "plainly" };
const SYMBOLS = { PASS: "✓", FAIL: "✗", INVALID: "!", held: "✓", broken: "✗", fixed: "✗", invalid: "!", known: "~" };
const FAULTS = { "in force": "odd", "not proven": "bad", faded: "bad", failed: "bad", stuck: "bad", gone: "good", reverted: "good" };
const since = (ms) => { const s = Math.max(Math.round(ms / 1000), 0); return s < 60 ? `${s} s` : `${Math.floor(s / 60)} min`; };
const wall = (iso) => new Date(iso).toLocaleTimeString([], { hour12: false });
const left = (ends) => (ends === null || ends === undefined ? "" : `, ${clock(Math.max(ends - state.run.now, 0))} left`);
const runTitle = () => {
  const run = state.run, of = state.runs.length > 1 && run ? `experiment ${run.number} of ${state.runs.length}` : "";
  const planned = run && (state.runs[run.number - 1] || {}).title, name = (run && run.title) || planned || (run ? of || "A run" : state.title || "War room");
  return of && name !== of ? `${name} (${of})` : name;
};

const drawHeader = () => {
  const run = state.run, words = { live: "live", connecting: "connecting", over: "over", lost: "" };
  setText($("title"), runTitle());
  document.title = `${state.over ? "over" : run ? run.verdict ? run.verdict.verdict : run.phase || "starts" : "war room"} · ${runTitle()}`;
  let phase = "Waiting for the first run.";
  if (run) phase = run.verdict ? `judged after ${clock(run.now)}` : run.ended ? `ended (${run.ended}), is judged` : run.phase ? `${run.phase}${left(run.phase_ends)} · ${clock(run.now)} into the run` : "starting";
  if (state.stopping && !(run && run.verdict)) phase = `stopping: faults are reverted first · ${phase}`;
  setText($("phase"), phase);
  const pill = $("connection");
  pill.className = `pill ${connection === "live" ? "good" : connection === "lost" ? "bad" : "odd"}`;
  setText(pill, words[connection] || "no connection, trying again");
  show($("stop"), state.lead && !state.over);
  $("stop").disabled = state.stopping || !(state.going || state.question) || connection !== "live";
  const notes = [];
  if (connection === "lost") notes.push(`No update has come from the run for ${since(Date.now() - Math.max(heardAt, 0))}. You see the last state. The run does not depend on this page.`);
  if (missed) notes.push(`This page was away or too slow for ${missed} updates. They came as one summary: the figures are complete, and the log has its latest lines.`);
  if (state.over) notes.push(`The run's process has ended${state.over.text ? `: ${state.over.text}` : ""}. This is the last state; close the page when you are done.`);
  show($("notice"), notes.length > 0);
  setText($("notice"), notes.join(" "));
};

let asked = 0;
const drawQuestion = () => {
  const predicts = !state.lead && state.ballot && state.ballot.state === "open";   // that is what the lead is asked for
  const question = predicts ? null : state.question, section = $("question"), key = question ? `${question.id} ${state.lead}` : 0;
  if (key === asked) return;
  asked = key;
  show(section, Boolean(question));
  section.replaceChildren();
  if (!question) return;
  section.append(node("h2", { id: "asks" }, state.lead ? "You decide" : "The lead is asked"), node("p", { class: "text" }, question.text));
  if (!state.lead) return;
  if (question.trouble) section.append(node("p", { class: "trouble", role: "alert" }, question.trouble));
  const said = node("p", { class: "quiet", role: "status" });
  const answer = async (text) => { const result = await send("answer", { question: question.id, answer: text }); setText(said, result.ok ? "" : result.said); };
  if (question.choices.length) {
    const row = node("div", { class: "row choices" });
    for (const choice of question.choices) {
      const button = node("button", { type: "button" }, choice.label);
      button.addEventListener("click", () => answer(choice.answer));
      row.append(button);
    }
    section.append(row);
  } else {
    const field = node("input", { type: "text", "aria-label": "Answer", autocomplete: "off", maxlength: "2000" });
    const form = node("form", { class: "row" }, field, node("button", { type: "submit" }, "Answer"));
    form.addEventListener("submit", (event) => { event.preventDefault(); answer(field.value); });
    section.append(form);
    if (question.hint) section.append(node("p", { class: "quiet" }, question.hint));
  }
  section.append(said, node("p", { class: "quiet" }, "The terminal asks the same question. The first answer counts."));
};

// what people predict: who has answered, and on a person's own page the form
let mine = { name: "", answers: null }, mineOf = null, drawnBallot = "";
const fetchMine = async () => {
  try {
    const answer = await fetch("mine");
    if (answer.ok) mine = await answer.json();
  } catch { return; }   // it is asked for again with the next change
  later();
};
const fieldOf = (question, number) => {
  if (!question.choices.length || question.several && question.choices.length > 12) {
    const field = node("input", { type: "text", id: `q${number}`, autocomplete: "off", maxlength: "200" });
    return { element: node("div", {}, node("label", { for: `q${number}` }, question.ask), field, node("p", { class: "quiet" }, question.how)), value: () => field.value };
  }
  const kind = question.several ? "checkbox" : "radio", names = question.several ? [...question.choices, "none"] : question.choices;
  const boxes = names.map((name) => node("input", { type: kind, name: `q${number}`, value: name }));
  const row = node("div", { class: "row choices" }, ...boxes.map((box, index) => node("label", { class: "check" }, box, ` ${names[index]}`)));
  if (question.several) for (const box of boxes) box.addEventListener("change", () => {
    const none = boxes[boxes.length - 1];
    for (const other of boxes) if (box.checked && (box === none) !== (other === none)) other.checked = false;
  });
  return { element: node("fieldset", {}, node("legend", {}, question.ask), row), value: () => boxes.filter((box) => box.checked).map((box) => box.value).join(", ") };
};
const drawBallot = () => {
  const ballot = state.ballot, section = $("ballot"), version = ballot ? `${ballot.run} ${ballot.state} ${ballot.answered.length}` : "none";
  if (mineOf !== version) { mineOf = version; fetchMine(); }
  show(section, Boolean(ballot));
  const key = ballot ? JSON.stringify([ballot.run, ballot.state, mine]) : "";
  if (ballot) {
    const left = ballot.waiting.length ? `Not yet: ${ballot.waiting.join(", ")}.` : "That is everybody.";
    if ($("who-answered")) setText($("who-answered"), `${ballot.answered.length ? `Answered: ${ballot.answered.join(", ")}. ` : ""}${left}`);
  }
  if (key === drawnBallot) return;
  drawnBallot = key;
  section.replaceChildren();
  if (!ballot) return;
  const title = (state.runs[ballot.run - 1] || {}).title || `experiment ${ballot.run}`, open = ballot.state === "open";
  section.append(node("h2", { id: "ballot-heading" }, mine.name ? `${mine.name}: what do you predict?` : "What people predict"), node("p", { class: "text" }, title));
  if (mine.name && mine.answers) {
    const rows = ballot.questions.map((question) => node("tr", {}, node("td", {}, question.ask), node("td", {}, mine.answers[question.key] || "no prediction")));
    section.append(node("table", { id: "mine" }, node("tbody", {}, ...rows)), node("p", { class: "quiet" }, open ? "You have answered. Others read it when all answers are shown." : "The answers are shown."));
  } else if (mine.name) {
    const fields = ballot.questions.map(fieldOf), said = node("p", { class: "trouble", role: "alert" }), button = node("button", { type: "submit" }, "Send my answers");
    if (!open) section.append(node("p", { class: "trouble" }, "The answers are shown already: yours would be late, and would not count."));
    const form = node("form", {}, ...fields.map((field) => field.element), node("p", { class: "quiet" }, "An empty field means no prediction. You can send only once."), button, said);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      const answers = Object.fromEntries(ballot.questions.map((question, index) => [question.key, fields[index].value()]));
      const result = await send("predict", { run: ballot.run, answers });
      button.disabled = false;
      setText(said, result.ok ? "" : result.said);
      if (result.ok || result.status === 409) fetchMine();
    });
    section.append(form);
  }
  section.append(node("p", { class: "quiet", id: "who-answered", role: "status" }));
  later();
};

let judged = "";
const drawVerdict = () => {
  const verdict = state.run && state.run.verdict, key = verdict ? `${state.run.number} ${verdict.verdict}` : "";
  if (key === judged) return;
  judged = key;
  const section = $("verdict");
  show(section, Boolean(verdict));
  section.replaceChildren();
  section.className = verdict ? `card ${TONES[verdict.verdict] || "odd"}` : "";
  if (!verdict) return;
  section.append(node("p", { class: "verdict", id: "verdict-word" }, `${SYMBOLS[verdict.verdict] || ""} ${verdict.verdict}`));
  const list = node("ul");
  for (const each of verdict.expectations) {
    const item = node("li", { class: TONES[each.finding] || "odd" }, node("span", { class: "badge" }, `${SYMBOLS[each.finding] || ""} ${each.finding}`), " ", node("code", {}, each.title));
    if (each.text && each.finding !== "held") item.append(node("p", { class: "text" }, each.text));
    if (each.issue) item.append(node("p", { class: "quiet" }, `known issue: ${each.issue}`));
    list.append(item);
  }
  for (const reason of verdict.reasons) list.append(node("li", {}, reason));
  section.append(list);
  if (verdict.report) section.append(node("p", { class: "quiet" }, "Report: ", node("code", {}, verdict.report)));
};

const tile = (title, tone, ...content) => node("div", { class: `tile ${tone}` }, node("h3", {}, title), ...content);
const drawNow = () => {
  const run = state.run, tiles = [];
  setText($("now-heading"), run && run.ended ? "At the end" : "Now");
  if (!run) { $("tiles").replaceChildren(node("p", { class: "quiet" }, "Nothing runs yet.")); return; }
  for (const [name, load] of Object.entries(run.loads)) {
    const last = load.last, sick = last.errors > 0 || last.p99 === "never" || last.waiting > 0, list = node("dl");
    const figures = [["rate", "/s", last.rate], ["p50", "s", last.p50], ["p99", "s", last.p99], ["errors", "share", last.errors]];
    for (const [title, unit, value] of figures) list.append(node("dt", {}, title), node("dd", { class: title === "errors" && value > 0 || value === "never" ? "bad toned" : null }, human(value, unit)));
    tiles.push(tile(name, sick ? "bad" : "good", list, last.waiting ? node("p", { class: "bad toned" }, `${last.waiting} waiting, up to ${human(last.waited, "s")}`) : null));
  }
  if (run.more_loads) tiles.push(tile("more loads", "", node("p", { class: "big" }, `${run.more_loads} not shown`)));
  for (const [title, spans] of Object.entries(run.leaders)) {
    const now = spans[spans.length - 1];
    tiles.push(tile(title, now.name ? "good" : "bad", node("p", { class: `big${now.name ? "" : " toned"}` }, now.name || "none"), node("p", { class: "quiet" }, `for ${clock(Math.max(run.now - now.start, 0))}`)));
  }
  if (state.lead) {
    const list = node("ul");
    for (const fault of run.in_force) list.append(node("li", {}, `${fault.label}${left(fault.ends)}`));
    for (const mark of run.lasting) list.append(node("li", {}, `mark ${mark.label}${left(mark.ends)}`));
    const some = list.children.length > 0;
    tiles.push(tile("faults in force", some ? "odd" : "", some ? list : node("p", {}, "none")));
  }
  if (!tiles.length) tiles.push(node("p", { class: "quiet" }, "The datacenter starts; figures come with the loads."));
  $("tiles").replaceChildren(...tiles);
};

let listed = "";
const drawFaults = () => {
  const faults = state.run ? state.run.faults : [], key = JSON.stringify([state.run && state.run.number, faults]);
  if (key === listed) return;
  listed = key;
  const items = faults.slice().reverse().map((fault) => node("li", { class: FAULTS[fault.state] || "plainly" },
    node("span", { class: "badge" }, fault.state), ` ${clock(fault.at)} ${fault.label}${fault.params ? ` (${fault.params})` : ""}${fault.evidence ? `: measured ${fault.evidence}` : ""}`));
  if (state.run && state.run.more_faults) items.push(node("li", {}, `and ${state.run.more_faults} more`));
  $("faults").replaceChildren(...items);
};

// ---- figures
const plots = new Map();
let plotsOf = "";
const panelsOf = (run) => {
  const panels = [];
  const times = (values) => values.map((_, index) => (index + 0.5) * run.width);
  const panel = (id, group, title, unit, rest) => panels.push({ id, group, title, unit, height: 80, bucket: run.width, t: times(rest.series[0].v), ...rest });
  for (const [name, load] of Object.entries(run.loads)) {
    const tall = window.innerWidth < 640 ? 110 : 140;
    panel(`${name} latency`, "", `${name}: latency`, "s", { log: true, height: tall, series: [{ name: "p50", v: load.p50 }, { name: "p99", v: load.p99 }] });
    panel(`${name} rate`, "pair", `${name}: acknowledged per second`, "/s", { series: [{ name: "rate", v: load.rate, colour: "c2" }] });
    panel(`${name} errors`, "pair", `${name}: errors`, "share", { top: 1, series: [{ name: "errors", v: load.errors, style: "bars" }] });
  }
  for (const [signal, probe] of Object.entries(run.probes)) panel(signal, "probes", probe.title, probe.unit, { height: 70, series: [{ name: "worst host", v: probe.values }] });
  return panels;
};
const layOut = (panels) => {
  const names = `${state.run.number} ${panels.map((panel) => panel.id).join("|")}`;
  if (names === plotsOf) return;
  plotsOf = names;
  plots.clear();
  const parts = [], groups = {};
  for (const panel of panels) {
    const made = panelFrame(panel), group = panel.group === "pair" ? `pair ${panel.title.split(":")[0]}` : panel.group;
    plots.set(panel.id, made);
    listen(made.holder);
    if (group && !groups[group]) {
      groups[group] = node("div", { class: panel.group });
      parts.push(...(panel.group === "probes" ? [node("h2", {}, "Probes (the worst host)")] : []), groups[group]);
    }
    if (group) groups[group].append(made.element); else parts.push(made.element);
  }
  $("panels").replaceChildren(...parts);
};
// the run as charts.js draws it; what has not ended lasts until now
const charted = (run) => {
  const until = (end) => end ?? run.now;
  const lanes = Object.entries(run.leaders).map(([title, spans]) => ({ title, segments: spans.map((span, index) => ({
    start: span.start, end: index + 1 < spans.length ? spans[index + 1].start : run.now, label: span.name || "none", ok: Boolean(span.name),
  })) }));
  for (const mark of run.marks) lanes.push({ title: "mark", segments: [{ ...mark, end: until(mark.end), style: "phase" }] });
  return {
    phases: run.phases.map((span) => ({ start: span.start, end: until(span.end), label: span.name })),
    faults: run.faults.map((fault) => ({ label: fault.label, at: fault.at, asked: null, applied: [fault.at, until(fault.end)], proven: fault.proven === null ? null : [fault.proven, until(fault.end)] })),
    marks: run.moments, lanes,
  };
};
const drawFigures = () => {
  const run = state.run;
  if (!run) return;
  const now = Math.max(run.now, 1), view = recent && now > RECENT_S ? [now - RECENT_S, now] : [0, Math.max(now, 20)];
  const panels = panelsOf(run), drawn = charted(run), put = (holder, frame) => { holder.frame = frame; pointAt(frame, cursor); };
  layOut(panels);
  put($("lanes"), drawLanes($("lanes"), drawn, view));
  for (const panel of panels) {
    const { holder, values } = plots.get(panel.id);
    put(holder, drawPanel(holder, panel, drawn, view));
    panel.series.forEach((series, index) => setText(values[index], cursor === null || !panel.t.length ? "" : human(series.v[nearest(panel.t, cursor)], panel.unit)));
  }
  setText($("scale"), panels.length ? `A point is ${run.width} s: the worst latency and error share in it, the mean rate. A red block along the top: not served at all.` : "No load runs yet.");
  drawReadout(run);
};
const drawReadout = (run) => {
  if (cursor === null) { setText($("readout"), "Point at the timeline to read it, or focus it and use the arrow keys."); return; }
  const within = (spans) => spans.find((span) => cursor >= span.start && cursor < (span.end ?? run.now + 1));
  const parts = [clock(cursor)], at = Math.floor(cursor / run.width), phase = within(run.phases);
  if (phase) parts.push(phase.name);
  for (const [title, spans] of Object.entries(run.leaders)) {
    const lead = spans.filter((span) => span.start <= cursor).pop();
    if (lead) parts.push(`${title} ${lead.name || "none"}`);
  }
  for (const [name, load] of Object.entries(run.loads)) parts.push(`${name} ${human(load.rate[at], "/s")}, p50 ${human(load.p50[at], "s")}, p99 ${human(load.p99[at], "s")}, errors ${human(load.errors[at], "share")}`);
  for (const fault of run.faults) if (cursor >= fault.at && cursor < (fault.end ?? run.now + 1)) parts.push(fault.label);
  setText($("readout"), parts.join(" · "));
};
const listen = (holder) => {
  holder.addEventListener("pointermove", (event) => {
    if (!holder.frame) return;
    cursor = Math.min(Math.max(timeAt(holder.frame, event), 0), state.run ? state.run.now : 0);
    later();
  });
  holder.addEventListener("pointerleave", () => { cursor = null; later(); });
};

// ---- the side: the day, predictions, the log
let dayOf = "";
const drawDay = () => {
  const now = JSON.stringify([state.runs, state.goals, state.people]);
  show($("day"), state.runs.length > 1 || state.people.length > 0);
  if (now === dayOf) return;
  dayOf = now;
  $("goals").replaceChildren(...state.goals.map((goal) => node("li", {}, goal)));
  $("runs").replaceChildren(...state.runs.map((run, index) => {
    const item = node("li", {}, run.title || `experiment ${index + 1}`);
    if (run.verdict) item.append(" ", node("span", { class: `badge ${TONES[run.verdict] || "odd"}` }, `${SYMBOLS[run.verdict] || ""} ${run.verdict}`));
    else if (run.state) item.append(" ", node("span", { class: "badge plainly" }, run.state));
    return item;
  }));
  setText($("people"), state.people.length ? `With ${state.people.join(", ")}` : "");
};
let predictedOf = "";
const drawPredictions = () => {
  const now = JSON.stringify(state.predictions);
  show($("predictions"), state.predictions.length > 0);
  if (now === predictedOf) return;
  predictedOf = now;
  const tables = [], runs = [...new Set(state.predictions.map((each) => each.run))];
  for (const run of runs) {
    const rows = state.predictions.filter((each) => each.run === run).map((each) => node("tr", {}, node("td", {}, each.who), node("td", {}, each.ask), node("td", {}, each.answer), node("td", {}, each.measured || "–")));
    const head = node("tr", {}, ...["who", "question", "predicted", "measured"].map((text) => node("th", { scope: "col" }, text)));
    tables.push(node("h3", {}, `Experiment ${run}`), node("table", {}, node("thead", {}, head), node("tbody", {}, ...rows)));
  }
  $("predicted").replaceChildren(...tables);
};
let newest = 0;
const drawLog = () => {
  const lines = $("lines"), log = state.log;
  const first = log.length ? log[0].n : 0;
  while (lines.lastElementChild && Number(lines.lastElementChild.dataset.n) < first) lines.lastElementChild.remove();
  for (const entry of log) {
    if (entry.n <= newest) continue;
    newest = entry.n;
    const said = node("span", { class: `said ${entry.tone ? `${entry.tone} toned` : ""}` }, ...(entry.who ? [node("b", {}, `${entry.who}: `)] : []), entry.text);
    const item = node("li", { class: entry.who ? "person" : null }, node("time", { datetime: entry.wall, title: entry.t === null ? null : `${clock(entry.t)} into the run` }, wall(entry.wall)), said);
    item.dataset.n = entry.n;
    lines.prepend(item);
  }
};

let waiting = 0;
const draw = () => {
  waiting = 0;
  if (!state) return;
  show($("note"), state.lead && !state.over);
  drawHeader();
  drawQuestion();
  drawBallot();
  drawVerdict();
  drawNow();
  drawFaults();
  drawFigures();
  drawDay();
  drawPredictions();
  drawLog();
};
const later = () => { if (!waiting) waiting = requestAnimationFrame(draw); };

// ---- what the lead may do
$("stop").addEventListener("click", () => $("sure").showModal());
$("keep").addEventListener("click", () => $("sure").close());
$("yes").addEventListener("click", async () => {
  const result = await send("stop", {});
  setText($("sure-text"), result.said);
  if (result.ok) $("sure").close();
});
$("note").addEventListener("submit", async (event) => {
  event.preventDefault();
  const result = await send("note", { text: $("text").value, watchers: $("watchers").checked, who: $("who").value });
  setText($("noted"), result.ok ? "" : result.said);
  if (result.ok) { $("text").value = ""; $("text").focus(); }
});
$("recent").addEventListener("click", () => { recent = !recent; $("recent").setAttribute("aria-pressed", String(recent)); later(); });
$("lanes").addEventListener("keydown", (event) => {
  if (!state.run || event.ctrlKey || event.metaKey || event.altKey) return;
  const run = state.run, step = Math.max(run.width, run.now / 120), from = cursor === null ? run.now : cursor;
  if (event.key === "ArrowLeft") cursor = Math.max(from - step, 0);
  else if (event.key === "ArrowRight") cursor = Math.min(from + step, run.now);
  else if (event.key === "Escape") cursor = null;
  else return;
  event.preventDefault();
  later();
});
listen($("lanes"));
new ResizeObserver(later).observe($("lanes"));
connect();
