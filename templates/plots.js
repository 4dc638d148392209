// Tooltips of plots. Every plot draws a ring around the trial under the pointer.
const scale = (text) => {
  const [kind, low, high, start, end] = text.split(" ").map((part, i) => (i ? Number(part) : part));
  const turn = { log: Math.log10, rev: (v) => -Math.log10(1 - v) }[kind] || ((v) => v);
  const back = { log: (v) => 10 ** v, rev: (v) => 1 - 10 ** -v }[kind] || ((v) => v);
  return (pixel) => {
    const value = turn(low) + ((pixel - start) / (end - start)) * (turn(high) - turn(low));
    return back(value);
  };
};
// Name, result and hyperparameters of a trial, from the table of trials.
const rowOf = new Map($$("#trials tbody tr").map((row) => [Number(row.dataset.t), row]));
const trial = (index) => {
  const row = rowOf.get(index);
  if (!row) return data.trials[index];
  const [name, status, best, , ...params] = [...row.cells].map((cell) => cell.textContent.trim());
  return [name, row.cells[1].className ? status : best, ...params];
};
const number = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });

const walk = (path) => {
  let x = 0, y = 0;
  const out = [];
  for (const [, command, rest] of path.getAttribute("d").matchAll(/([MlhvL])([^MlhvL]*)/g)) {
    const n = (rest.match(/-?(\d+\.?\d*|\.\d+)/g) || []).map(Number);
    if (command === "M" || command === "L") [x, y] = n;
    else if (command === "l") { x += n[0]; y += n[1]; }
    else if (command === "h") x += n[0];
    else if (command === "v") y += n[0];
    out.push([x, y, command]);
  }
  return out;
};

const trialsOf = (element) => element.dataset.t.split(" ").filter(Boolean).flatMap((run) => {
  const [first, last = first] = run.split("-").map(Number);
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
});
for (const lines of $$(".pc[data-t]")) trialsOf(lines).forEach((index, i) => { lines.children[i].dataset.t = index; });

const read = (svg) => {
  const points = [];
  // Plots of one hyperparameter share their dots. A finding's plot draws its own dots over the shared dots.
  const shared = $$("use", svg).flatMap((use) => $$("path[data-t]", $(use.getAttribute("href"))));
  for (const path of [...$$("path[data-t]", svg), ...shared]) {
    const trials = trialsOf(path);
    if (path.classList.contains("crv")) {
      // Add points on straight parts of a curve, where the path has few points.
      let last = null;
      for (const [x, y, command] of walk(path)) {
        const pieces = command === "M" ? 1 : Math.ceil(Math.hypot(x - last[0], y - last[1]) / 12);
        for (let i = 1; i < pieces; i++) {
          points.push({ x: last[0] + (i / pieces) * (x - last[0]), y: last[1] + (i / pieces) * (y - last[1]), trial: trials[0], path });
        }
        points.push({ x, y, trial: trials[0], path });
        last = [x, y];
      }
    } else if (path.closest(".pc")) {
      // The pointer can hit a line between two axes, but rings are drawn only on the axes.
      walk(path).forEach(([x, y, command], i, all) => {
        if (command !== "M") {
          const [a, b] = all[i - 1];
          for (const part of [0.25, 0.5, 0.75]) {
            points.push({ x: a + part * (x - a), y: b + part * (y - b), trial: trials[0], path, between: true });
          }
        }
        points.push({ x, y, trial: trials[0], path });
      });
    } else {
      walk(path).forEach(([x, y], i) => points.push({ x, y, trial: trials[i], path }));
    }
  }
  for (const path of $$("path.count", svg)) {
    for (const bar of path.getAttribute("d").matchAll(/M([\d.]+) [\d.]+V([\d.]+)h([\d.]+)/g)) {
      const [x, y, width] = bar.slice(1).map(Number);
      points.push({ x: x + width / 2, y, ends: [x - 0.5, x + width + 0.5], path });
    }
  }
  const own = new Set(points.filter((p) => svg.contains(p.path)).map((p) => p.trial));
  return points.filter((p) => svg.contains(p.path) || !own.has(p.trial)).filter((p) => p.ends || rowOf.has(p.trial) || data.trials[p.trial]).sort((a, b) => a.x - b.x);
};

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
const plots = [];

const mark = (index) => {
  for (const ring of $$(".ring")) ring.remove();
  for (const lit of $$(".lit")) lit.classList.remove("lit");
  if (index === null) return;
  const visible = plots.filter((plot) => plot.svg.checkVisibility()); // before rings are added, so that the browser computes the layout only once
  for (const plot of plots) {
    for (const path of plot.svg.querySelectorAll(`path:is(.crv, .pc *)[data-t="${index}"]`)) path.classList.add("lit");
  }
  for (const plot of visible) {
    for (const p of plot.points()) {
      if (p.trial !== index || p.between || p.path.classList.contains("crv")) continue;
      const ring = document.createElementNS(SVG, "circle");
      for (const [k, v] of Object.entries({ class: "ring", cx: p.x, cy: p.y, r: 7 })) ring.setAttribute(k, v);
      plot.svg.append(ring);
    }
  }
  const row = rowOf.get(index);
  if (row) row.classList.add("lit");
};

const describe = (plot, p) => {
  if (p.ends) {
    const [low, high] = p.ends.map((end) => number(Number(plot.x(end).toPrecision(3))));
    return [`${low} to ${high}`, `count: ${number(Math.round(plot.y(p.y)))}`];
  }
  const [name, best, ...params] = trial(p.trial);
  if (p.path.classList.contains("crv")) {
    return [name, `step ${number(Math.round(plot.x(p.x)))}: ${number(plot.y(p.y))}`];
  }
  return [name, `${data.metric}: ${best}`, ...params.map((v, i) => `${data.params[i]}: ${v}`).slice(0, 8)];
};

const point = (plot, p, aloud) => {
  mark(p.ends ? selected : p.trial);
  if (p.path.classList.contains("crv")) {
    const ring = document.createElementNS(SVG, "circle");
    for (const [k, v] of Object.entries({ class: "ring", cx: p.x, cy: p.y, r: 4 })) ring.setAttribute(k, v);
    plot.svg.append(ring);
  }
  const lines = describe(plot, p);
  tip.replaceChildren(...lines.map((line, i) => {
    const element = document.createElement(i ? "div" : "b");
    element.textContent = line;
    return element;
  }));
  tip.hidden = false;
  const box = plot.svg.getBoundingClientRect();
  const zoom = box.width / plot.svg.viewBox.baseVal.width;
  const left = box.left + p.x * zoom + 12;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 6;
  tip.style.left = `${Math.max(6, left > room ? left - tip.offsetWidth - 24 : left) + scrollX}px`;
  tip.style.top = `${box.top + p.y * zoom + 12 + scrollY}px`;
  if (aloud) live.textContent = lines.join(", ");
};
let selected = null; // the trial whose curves are shown
const leave = () => { tip.hidden = true; mark(selected); };
document.addEventListener("toggle", leave, true);

for (const svg of $$(".plot > svg")) {
  if (!$("path:is([data-t], .count), use", svg) && !svg.closest("#selected")) continue;
  let cache = null;
  const plot = { svg, points: () => (cache ??= read(svg)), forget: () => { cache = null; plot.at = -1; }, x: scale(svg.dataset.x || "lin 0 1 0 1"), y: scale(svg.dataset.y || "lin 0 1 0 1"), at: -1 };
  plots.push(plot);
  svg.setAttribute("tabindex", "0");
  const caption = $("figcaption p", svg.parentElement);
  if (caption) {
    caption.id = `caption-${plots.length}`;
    svg.setAttribute("aria-describedby", caption.id);
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const zoom = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * zoom, y = (event.clientY - box.top) * zoom;
    let near = null, least = 24 ** 2;
    plot.points().forEach((p, i) => {
      const far = (p.x - x) ** 2 + (p.y - y) ** 2;
      if (far < least) { least = far; near = p; plot.at = i; }
    });
    if (near) point(plot, near, false); else leave();
  });
  svg.addEventListener("click", () => { if (!tip.hidden) select(plot.points()[plot.at].trial); });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const points = plot.points(), last = points.length - 1;
    const to = { ArrowRight: plot.at + 1, ArrowLeft: plot.at - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") leave();
    if (event.key === "Enter" && points[plot.at]) select(points[plot.at].trial);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    plot.at = Math.min(Math.max(to, 0), last);
    point(plot, points[plot.at], true);
  });
}
