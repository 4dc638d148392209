// Navigation, theme, copying and printing. `html.py` joins the scripts into one scope.
const $ = (selector, from = document) => from.querySelector(selector);
const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
const data = JSON.parse($("#data").textContent);
const live = $("#live");
const SVG = "http://www.w3.org/2000/svg";

// Links to anchors do nothing in a sandboxed frame, so a script scrolls.
const show = (target) => {
  for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  target.scrollIntoView({ block: "start" });
  target.focus({ preventScroll: true });
};
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  const target = link && document.getElementById(link.getAttribute("href").slice(1));
  if (target) { event.preventDefault(); show(target); }
});

for (const element of $$("[data-js]")) element.hidden = false;

const theme = $("#theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const root = document.documentElement;
  const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

// --- copying a study file, also without access to the clipboard

for (const button of $$("[data-copy]")) {
  button.hidden = false;
  const source = document.getElementById(button.dataset.copy);
  button.addEventListener("click", async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      done = true;
    } catch {
      getSelection().selectAllChildren(source);
      try { done = document.execCommand("copy"); } catch { /* the selection stays for the reader to copy */ }
    }
    button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    live.textContent = button.textContent;
    setTimeout(() => { button.textContent = "Copy"; }, 4000);
  });
}

let closed = [];
addEventListener("beforeprint", () => {
  closed = $$("details:not([open])");
  for (const box of closed) box.open = true;
});
addEventListener("afterprint", () => { for (const box of closed) box.open = false; });
