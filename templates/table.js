// Sorting and filtering of the table of trials.
const table = $("#trials table");
const body = $("tbody", table), rows = $$("tr", body);
const key = (row, column) => {
  const text = row.cells[column].textContent.replaceAll(",", "").replaceAll("−", "-");
  const value = Number(text);
  return text === "" || Number.isNaN(value) ? text : value;
};
$$("thead th", table).forEach((head, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of $$("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keyed = rows.map((row, i) => [key(row, column), i, row]);
    keyed.sort(([a, i], [b, j]) => {
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // text goes last in both directions
      const order = a < b ? -1 : a > b ? 1 : 0;
      return (up ? order : -order) || i - j;
    });
    body.append(...keyed.map((item) => item[2]));
  });
});
const tools = $("#trials .tools"), filter = $("#filter");
tools.hidden = false;
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += !row.hidden;
  }
  $("#shown").textContent = words.length ? `${shown} of ${rows.length} shown` : "";
});
