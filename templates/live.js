"use strict";
(() => {
  const frame = document.getElementById("report"), said = document.getElementById("said"), list = document.getElementById("changes");
  let version = 0;

  // A newer report takes the place of the one that is read: at the same height, with the same parts open.
  const place = (page) => ({
    top: page.scrollY,
    open: [...page.document.querySelectorAll("details")].map((box) => box.open),
    theme: page.document.documentElement.dataset.theme,
  });
  const restore = (page, was) => {
    const boxes = [...page.document.querySelectorAll("details")];
    if (boxes.length === was.open.length) boxes.forEach((box, i) => { box.open = was.open[i]; });
    if (was.theme) page.document.documentElement.dataset.theme = was.theme;
    page.scrollTo({ top: was.top, behavior: "instant" });
  };

  const load = () => {
    const was = version && frame.contentDocument && frame.contentWindow ? place(frame.contentWindow) : null;
    frame.addEventListener("load", () => { if (was) restore(frame.contentWindow, was); }, { once: true });
    frame.src = `/report.html?${Date.now()}`;
  };

  const look = async () => {
    try {
      const state = await (await fetch("/state")).json();
      if (state.version !== version) {
        load();
        version = state.version;
        list.replaceChildren(...state.changes.map((change) => {
          const item = document.createElement("li");
          item.textContent = change;
          return item;
        }));
      }
      const news = state.changes.length ? ". New since the one before:" : "";
      said.textContent = state.error ? `The report is of ${state.at}. The analysis fails since: ${state.error}` : `Report of ${state.at}${news}`;
      said.className = state.error ? "failed" : "";
    } catch {
      said.textContent = "advisor analyze --watch has ended; this is its last report.";
      said.className = "failed";
    }
    setTimeout(look, 2000);
  };
  look();
})();
