"use strict";
(() => {
  const frame = document.getElementById("report"), said = document.getElementById("said"), list = document.getElementById("changes");
  let version = 0;

  // A newer report takes the place of the one that is read: at the same height, with the same parts open and the same one in focus.
  // What it is called tells a part again, without the numbers in it, which change as trials come in.
  const called = (box) => {
    const heading = box.closest("article, section")?.querySelector("h2, h3")?.textContent ?? "";
    return `${heading}|${box.querySelector("summary")?.textContent ?? ""}`.replace(/[\d.,]+/g, "");
  };
  const boxesOf = (page) => [...page.document.querySelectorAll("details")];
  const place = (page) => {
    const focused = document.activeElement === frame ? page.document.activeElement : null;
    return {
      top: page.scrollY,
      open: new Map(boxesOf(page).map((box) => [called(box), box.open])),
      focused: focused?.matches("summary") ? called(focused.parentElement) : null,
      id: focused?.id || null,
      shown: page.document.getElementById("filter")?.value,
      theme: page.document.documentElement.dataset.theme,
    };
  };
  const restore = (page, was) => {
    for (const box of boxesOf(page)) box.open = was.open.get(called(box)) ?? box.open;
    if (was.theme) page.document.documentElement.dataset.theme = was.theme;
    const filter = page.document.getElementById("filter");
    if (filter && was.shown) {
      filter.value = was.shown;
      filter.dispatchEvent(new page.Event("input", { bubbles: true }));
    }
    page.scrollTo({ top: was.top, behavior: "instant" });
    const again = was.focused && boxesOf(page).find((box) => called(box) === was.focused)?.querySelector("summary");
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
