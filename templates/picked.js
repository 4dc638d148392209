// The curves of one trial beside those of the best: picked in the table, in a plot, by name, or one rank up or down.
const aside = $("#picked");
const sketched = aside ? $$("svg[role=img]", aside) : [];
const order = data.order || rows.map((row) => Number(row.dataset.t));
let opener = null;

const sketch = (svg, n, index, kind) => {
  const { of, columns } = data.sketches[n];
  const text = of[index];
  if (!text) return;
  const [[left, right], [bottom, top]] = ["x", "y"].map((axis) => svg.dataset[axis].split(" ").slice(3).map(Number));
  const each = Number(text[0]); // values in a column
  let d = "", on = false, before = null;
  [...text.slice(1)].forEach((sign, i) => {
    const level = data.levels.indexOf(sign);
    if (sign === "!") on = false;
    if (level < 0) return;
    const x = left + ((Math.floor(i / each) + (each > 1 ? 0.25 + 0.5 * (i % each) : 0.5)) / columns) * (right - left);
    const y = bottom + (level / (data.levels.length - 1)) * (top - bottom);
    // What lies beyond the axis is no plateau at its end.
    if (level === before && (level === 0 || level === data.levels.length - 1)) on = false;
    before = level;
    d += `${on ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${on ? "" : "h0"}`;
    on = true;
  });
  const path = document.createElementNS(SVG, "path");
  for (const [k, v] of Object.entries({ class: `crv ${kind}`, d, "data-t": index })) path.setAttribute(k, v);
  svg.append(path);
};
sketched.forEach((svg, n) => data.best.forEach((index, i) => sketch(svg, n, index, `s${i}`)));

const link = (index) => {
  const listed = rowOf.get(index) && $("a", rowOf.get(index));
  return listed ? listed.href : data.runs && data.ids[index] ? data.runs + encodeURIComponent(data.ids[index]) : null;
};

const missing = (n, index) => {
  const { metric, of } = data.sketches[n];
  if (of[index]) return [];
  return [of[index] === "" ? `It logged no ${metric}.` : `Its ${metric} is not on this page${link(index) ? "; its run has it" : ""}.`];
};

const close = () => {
  if (picked === null) return;
  aside.hidden = true;
  picked = null;
  for (const button of $$(".pick[aria-pressed=true]")) button.setAttribute("aria-pressed", "false");
  leave();
  if (opener && aside.contains(document.activeElement)) opener.focus();
  opener = null;
};

const pick = (index) => {
  if (!aside || index === undefined || !(rowOf.has(index) || data.trials[index])) return;
  if (picked === null) opener = document.activeElement;
  picked = index;
  const [name, best, ...params] = trial(index);
  const rank = order.indexOf(index);
  const to = link(index), head = document.createElement(to ? "a" : "bdi");
  head.textContent = name;
  if (to) Object.assign(head, { href: to, target: "_blank", rel: "noopener" });
  $("#picked-name").replaceChildren(head);
  const said = [`${data.metric}: ${best}`, ...params.map((value, i) => `${data.params[i]}: ${value}`)].join(", ");
  const lacks = sketched.flatMap((_, n) => missing(n, index)).join(" ");
  $("#picked-said").textContent = `${said}. ${lacks}`;
  $("#picked-better").disabled = rank <= 0;
  $("#picked-worse").disabled = rank === order.length - 1;
  sketched.forEach((svg, n) => {
    $(".picked", svg)?.remove();
    sketch(svg, n, index, "picked");
  });
  for (const plot of plots) if (aside.contains(plot.svg)) plot.forget();
  for (const button of $$(".pick")) button.setAttribute("aria-pressed", String(Number(button.closest("tr").dataset.t) === index));
  aside.hidden = false;
  tip.hidden = true;
  mark(index);
  live.textContent = `Curves of ${name}, at the end of the page; Escape closes them. ${said}. ${lacks}`;
};

if (aside) {
  const step = (by) => pick(order[order.indexOf(picked) + by]);
  $("#picked-better").addEventListener("click", () => step(-1));
  $("#picked-worse").addEventListener("click", () => step(1));
  $("#picked-close").addEventListener("click", close);
  $("#pick-any").addEventListener("click", () => { pick(order[0]); $("#picked-find").focus(); });
  const find = $("#picked-find");
  find.addEventListener("change", () => {
    const asked = find.value.trim().toLowerCase();
    const named = (test) => order.find((index) => test(trial(index)[0].toLowerCase()));
    const found = asked && (named((name) => name === asked) ?? named((name) => name.includes(asked)));
    if (asked && found === undefined) live.textContent = $("#picked-said").textContent = `No trial has ${find.value} in its name.`;
    else if (asked) pick(found);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });

  // One stop of the tabulator for all rows; the arrow keys go from row to row.
  rows.forEach((row, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "pick";
    button.setAttribute("aria-label", `Curves of ${row.cells[0].textContent}`);
    button.setAttribute("aria-pressed", "false");
    button.tabIndex = i ? -1 : 0;
    row.cells[0].prepend(button);
    row.addEventListener("click", (event) => { if (!event.target.closest("a")) pick(Number(row.dataset.t)); });
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
