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

  // The running and the stopped trials. A row shows the reason for its verdict if the verdict is a problem or if the user opens the row.
  const trouble = ["doomed", "not_finite", "diverging", "stuck"];
  const panel = document.getElementById("running"), trials = panel.querySelector("ul");
  const element = (tag, text, name = "") => Object.assign(document.createElement(tag), { textContent: text, className: name });
  const rowOf = (trial, open) => {
    const row = element("li", "", trial.state), box = document.createElement("details"), head = document.createElement("summary");
    row.dataset.id = trial.id;
    const name = element("span", ""), bar = document.createElement("progress");
    name.append(element("bdi", trial.name));
    bar.setAttribute("aria-label", "Share of the training");
    if (trial.done !== null) bar.value = trial.done;
    bar.style.visibility = trial.done === null ? "hidden" : "visible";
    head.append(name, bar, element("span", trial.progress, "done"), element("span", trial.word, "word"));
    head.title = trial.message;
    box.append(head, element("p", trial.message), ...trial.notes.map((note) => element("p", note, "note")));
    box.open = open;
    row.append(box);
    return row;
  };
  const listRunning = (state) => {
    const key = (trial) => `${trial.id} ${trial.state}`;
    const open = new Map([...trials.children].map((row) => [`${row.dataset.id} ${row.className}`, row.querySelector("details").open]));
    const isOpen = (trial) => open.get(key(trial)) ?? (trouble.includes(trial.state) || trial.notes.length > 0);
    const focused = document.activeElement.closest("#running li")?.dataset.id;
    panel.querySelector("summary").textContent = state.summary;
    panel.hidden = !state.summary;
    trials.replaceChildren(...state.running.map((trial) => rowOf(trial, isOpen(trial))));
    if (focused) [...trials.children].find((row) => row.dataset.id === focused)?.querySelector("summary").focus({ preventScroll: true });
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
        listRunning(state);
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
