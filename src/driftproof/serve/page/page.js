"use strict";
const byId = id => document.getElementById(id);
const MOST = 900, WAIT = 1000, HEIGHT = 170;
const CURVES = {kept: [0, 1], novelty: null, disagreement: [0, 1], entropy: [0, 1]};
const data = {time: [], kept: [], novelty: [], disagreement: [], entropy: []};
const seen = {run: null, batch: 0, alarm: 0, images: 0, alarms: 0};
let charts = [];

const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clock = seconds => new Date(1000 * seconds).toLocaleTimeString();
const short = value => value === null || value === undefined ? "–" : Number(value).toPrecision(3);
const percent = value => value === null ? "–" : `${(100 * value).toFixed(1)} %`;
function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function drawCharts() {
  charts.forEach(chart => chart.destroy());
  const axis = {stroke: color("--soft"), grid: {stroke: color("--edge"), width: 1}, ticks: {show: false}};
  charts = Object.entries(CURVES).map(([name, range]) => new uPlot({
    width: byId(name).clientWidth, height: HEIGHT, legend: {show: false}, cursor: {y: false},
    scales: {y: range ? {range} : {}},
    axes: [{...axis, space: 90, size: 30, values: (_, ticks) => ticks.map(clock)}, {...axis, size: 46}],
    series: [{}, {label: name, stroke: color("--accent"), width: 2, points: {show: data.time.length < 30}}],
  }, [data.time, data[name]], byId(name)));
}
function resizeCharts() {
  Object.keys(CURVES).forEach((name, at) => charts[at].setSize({width: byId(name).clientWidth, height: HEIGHT}));
}

function addBatches(batches) {
  if (!batches.length) return;
  for (const batch of batches) {
    data.time.push(batch.time);
    for (const name of ["kept", "novelty", "entropy"]) data[name].push(batch[name]);
    data.disagreement.push(batch.health.disagreement);
    seen.batch = batch.batch; seen.images += batch.images; seen.alarms += batch.alarms;
  }
  for (const values of Object.values(data)) values.splice(0, values.length - MOST);
  const {state} = batches[batches.length - 1].health;
  byId("health").textContent = state; byId("health").className = `pill ${state}`;
  byId("counts").textContent = `${seen.batch} batches, ${seen.images} images and ${seen.alarms} alarms on this page`;
  if (data.time.length - batches.length < 30) drawCharts();
  Object.keys(CURVES).forEach((name, at) => charts[at].setData([data.time, data[name]]));
}
function addAlarms(alarms) {
  for (const alarm of alarms) {
    const item = make("li"), picture = make("img");
    picture.src = alarm.image; picture.alt = alarm.name;
    item.append(picture, make("div", alarm.class ?? (alarm.predicted === null ? "–" : `class ${alarm.predicted}`)),
      make("div", `novelty ${short(alarm.novelty)}`), make("time", clock(alarm.time)));
    byId("alarms").prepend(item);
    seen.alarm = alarm.alarm;
  }
  while (byId("alarms").children.length > 24) byId("alarms").lastChild.remove();
  byId("quiet").hidden = byId("alarms").children.length > 0;
}
function showNotices(notices) {
  byId("notices").replaceChildren(...notices.slice(-12).reverse().map(notice => {
    const item = make("li");
    item.append(make("time", clock(notice.time)), `${notice.kind}: ${notice.message}${notice.count > 1 ? ` (${notice.count} times)` : ""}`);
    return item;
  }));
  byId("silent").hidden = notices.length > 0;
}
async function refresh() {
  try {
    const answer = await fetch(`history?after=${seen.batch}&after_alarm=${seen.alarm}`);
    if (!answer.ok) throw new Error(answer.status);
    const news = await answer.json();
    if (seen.run !== null && seen.run !== news.run) Object.assign(seen, {batch: 0, alarm: 0});  // it was started again
    const isSame = seen.run === null || seen.run === news.run;
    seen.run = news.run;
    if (byId("health").classList.contains("lost")) { byId("health").textContent = "connected"; byId("health").className = "pill"; }
    if (isSame) { addBatches(news.batches); addAlarms(news.alarms); showNotices(news.notices); }
  } catch {
    byId("health").textContent = "no connection"; byId("health").className = "pill lost";
  }
  document.body.dataset.drawn = "yes";
  setTimeout(refresh, WAIT);
}

async function send(file) {
  byId("answer").hidden = false;
  byId("preview").src = URL.createObjectURL(file);
  byId("result").replaceChildren(make("dt", "sending"), make("dd", file.name));
  const form = new FormData();
  form.append("image", file);
  let rows;
  try {
    const answer = await fetch("predict", {method: "POST", body: form});
    const content = await answer.json();
    const found = content.predictions ? content.predictions[0] : {error: content.error.message};
    rows = found.error ? [["error", found.error]] : [
      ["class", found.class ?? (found.predicted === null ? "–" : String(found.predicted))],
      ["probability", percent(found.probability)], ["novelty", short(found.novelty)],
      ["learned from", found.selected ? "yes" : found.quarantined ? "no, quarantined" : "no"],
      ["alarm", found.alarm === null ? "no threshold set" : found.alarm ? "yes" : "no"],
      ["health", found.health ?? "not measured yet"]];
  } catch (error) {
    rows = [["error", `no answer: ${error.message}`]];
  }
  byId("result").replaceChildren(...rows.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
}
const drop = byId("drop");
for (const kind of ["dragover", "dragleave", "drop"]) {
  drop.addEventListener(kind, event => { event.preventDefault(); drop.classList.toggle("over", kind === "dragover"); });
}
drop.addEventListener("drop", event => { if (event.dataTransfer.files.length) send(event.dataTransfer.files[0]); });
byId("file").addEventListener("change", event => { if (event.target.files.length) send(event.target.files[0]); });
addEventListener("resize", resizeCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
drawCharts();
refresh();
