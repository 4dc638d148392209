"use strict";
(() => {
  const frame = document.getElementById("report"), message = document.getElementById("message"), list = document.getElementById("changes");
  let version = 0;

  // A newer report replaces the open one at the same scroll position, with the same parts open and focused.
  // A part is identified by its label without numbers, which change from report to report.
  const label = (box) => {
    const heading = box.closest("article, section")?.querySelector("h2, h3")?.textContent ?? "";
    return `${heading}|${box.querySelector("summary")?.textContent ?? ""}`.replace(/[\d.,]+/g, "");
  };
  const boxesOf = (page) => [...page.document.querySelectorAll("details")];
  const place = (page) => {
    const focused = document.activeElement === frame ? page.document.activeElement : null;
    return {
      top: page.scrollY,
      open: new Map(boxesOf(page).map((box) => [label(box), box.open])),
      focused: focused?.matches("summary") ? label(focused.parentElement) : null,
      id: focused?.id || null,
      shown: page.document.getElementById("filter")?.value,
      theme: page.document.documentElement.dataset.theme,
    };
  };
  const restore = (page, was) => {
    for (const box of boxesOf(page)) box.open = was.open.get(label(box)) ?? box.open;
    if (was.theme) page.document.documentElement.dataset.theme = was.theme;
    const filter = page.document.getElementById("filter");
    if (filter && was.shown) {
      filter.value = was.shown;
      filter.dispatchEvent(new page.Event("input", { bubbles: true }));
    }
    page.scrollTo({ top: was.top, behavior: "instant" });
    const again = was.focused && boxesOf(page).find((box) => label(box) === was.focused)?.querySelector("summary");
    (again || (was.id && page.document.getElementById(was.id)))?.focus?.({ preventScroll: true });
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
      const news = state.changes.length ? ". Changes:" : "";
      message.textContent = state.error ? `Report from ${state.at}. The latest analysis failed: ${state.error}` : `Report from ${state.at}${news}`;
      message.className = state.error ? "failed" : "";
    } catch {
      message.textContent = "advisor watch has stopped. This is its last report.";
      message.className = "failed";
    }
    setTimeout(look, 2000);
  };
  look();
})();
