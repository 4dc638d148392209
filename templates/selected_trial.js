// The curves of one trial and of the best trials. The reader selects the trial in the table, in a plot, by name or by rank.
const aside = $("#selected");
const svgs = aside ? $$("svg[role=img]", aside) : [];
const order = data.order || rows.map((row) => Number(row.dataset.t));
let opener = null;

const drawCurve = (svg, n, index, kind) => {
  const { of, columns } = data.curves[n];
  const text = of[index];
  if (!text) return;
  const [[left, right], [bottom, top]] = ["x", "y"].map((axis) => svg.dataset[axis].split(" ").slice(3).map(Number));
  const each = Number(text[0]); // number of values per column of pixels
  let d = "", on = false, before = null;
  [...text.slice(1)].forEach((sign, i) => {
    const level = data.levels.indexOf(sign);
    if (sign === "!") on = false;
    if (level < 0) return;
    const x = left + ((Math.floor(i / each) + (each > 1 ? 0.25 + 0.5 * (i % each) : 0.5)) / columns) * (right - left);
    const y = bottom + (level / (data.levels.length - 1)) * (top - bottom);
    // Break the line where values lie outside the axis, because a plateau at the axis's end would be wrong.
    if (level === before && (level === 0 || level === data.levels.length - 1)) on = false;
    before = level;
    d += `${on ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${on ? "" : "h0"}`;
    on = true;
  });
  const path = document.createElementNS(SVG, "path");
  for (const [k, v] of Object.entries({ class: `crv ${kind}`, d, "data-t": index })) path.setAttribute(k, v);
  svg.append(path);
};
svgs.forEach((svg, n) => data.best.forEach((index, i) => drawCurve(svg, n, index, `s${i}`)));

const link = (index) => {
  const listed = rowOf.get(index) && $("a", rowOf.get(index));
  return listed ? listed.href : data.runs && data.ids[index] ? data.runs + encodeURIComponent(data.ids[index]) : null;
};

const missing = (n, index) => {
  const { metric, of } = data.curves[n];
  if (of[index]) return [];
  return [of[index] === "" ? `It logged no ${metric}.` : `Its ${metric} is not on this page${link(index) ? ", but in its run" : ""}.`];
};

const close = () => {
  if (selected === null) return;
  aside.hidden = true;
  selected = null;
  for (const button of $$(".pick[aria-pressed=true]")) button.setAttribute("aria-pressed", "false");
  leave();
  if (opener && aside.contains(document.activeElement)) opener.focus();
  opener = null;
};

const select = (index) => {
  if (!aside || index === undefined || !(rowOf.has(index) || data.trials[index])) return;
  if (selected === null) opener = document.activeElement;
  selected = index;
  const [name, best, ...params] = trial(index);
  const rank = order.indexOf(index);
  const to = link(index), head = document.createElement(to ? "a" : "bdi");
  head.textContent = name;
  if (to) Object.assign(head, { href: to, target: "_blank", rel: "noopener" });
  $("#selected-name").replaceChildren(head);
  const values = [`${data.metric}: ${best}`, ...params.map((value, i) => `${data.params[i]}: ${value}`)].join(", ");
  const lacks = svgs.flatMap((_, n) => missing(n, index)).join(" ");
  $("#selected-values").textContent = `${values}. ${lacks}`;
  $("#selected-better").disabled = rank <= 0;
  $("#selected-worse").disabled = rank === order.length - 1;
  svgs.forEach((svg, n) => {
    $(".selected", svg)?.remove();
    drawCurve(svg, n, index, "selected");
  });
  for (const plot of plots) if (aside.contains(plot.svg)) plot.forget();
  for (const button of $$(".pick")) button.setAttribute("aria-pressed", String(Number(button.closest("tr").dataset.t) === index));
  aside.hidden = false;
  tip.hidden = true;
  mark(index);
  live.textContent = `Curves of ${name} at the end of the page; Escape closes them. ${values}. ${lacks}`;
};

if (aside) {
  const step = (by) => select(order[order.indexOf(selected) + by]);
  $("#selected-better").addEventListener("click", () => step(-1));
  $("#selected-worse").addEventListener("click", () => step(1));
  $("#selected-close").addEventListener("click", close);
  $("#select-any").addEventListener("click", () => { select(order[0]); $("#selected-find").focus(); });
  const find = $("#selected-find");
  find.addEventListener("change", () => {
    const asked = find.value.trim().toLowerCase();
    const named = (test) => order.find((index) => test(trial(index)[0].toLowerCase()));
    const found = asked && (named((name) => name === asked) ?? named((name) => name.includes(asked)));
    if (asked && found === undefined) live.textContent = $("#selected-values").textContent = `No trial name contains ${find.value}.`;
    else if (asked) select(found);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });

  // One tab stop for all rows; arrow keys move between rows.
  rows.forEach((row, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "pick";
    button.setAttribute("aria-label", `Curves of ${row.cells[0].textContent}`);
    button.setAttribute("aria-pressed", "false");
    button.tabIndex = i ? -1 : 0;
    row.cells[0].prepend(button);
    row.addEventListener("click", (event) => { if (!event.target.closest("a")) select(Number(row.dataset.t)); });
  });
  body.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || !event.target.matches(".pick")) return;
    const shown = $$("tr:not([hidden]) .pick", body);
    const next = shown[shown.indexOf(event.target) + by];
    event.preventDefault();
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}
