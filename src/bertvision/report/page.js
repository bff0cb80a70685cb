// Draws the charts, shows one example at a time, sorts tables, switches between light and dark. Without it, everything
// can still be read.
(() => {
  "use strict";
  const root = document.documentElement;
  const NARROW = 560; // pixels of room below which a chart puts its parts under each other
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const charts = [...document.querySelectorAll(".chart")];
  root.classList.add("js");
  for (const chart of charts) chart.dataset.state = "waiting";

  // ---- light and dark -------------------------------------------------------------------------------------------
  const themeButton = document.getElementById("page-theme");

  function theme() {
    return root.dataset.theme || (prefersDark.matches ? "dark" : "light");
  }

  function nameThemeButton() {
    const other = theme() === "dark" ? "Light" : "Dark";
    themeButton.textContent = other;
    themeButton.setAttribute("aria-label", `Switch to ${other.toLowerCase()} colours`);
  }

  themeButton.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    nameThemeButton();
    drawAll();
  });
  prefersDark.addEventListener("change", () => {
    nameThemeButton();
    drawAll();
  });
  nameThemeButton();
  themeButton.hidden = false;

  // ---- charts ---------------------------------------------------------------------------------------------------
  const themes = JSON.parse(document.getElementById("page-themes").textContent);
  const views = new Map();
  let turn = 0; // drawings asked for so far: an older one gives up
  let queue = Promise.resolve();

  function drawAll() {
    const mine = ++turn;
    queue = queue.then(async () => {
      const colours = theme();
      for (const chart of charts.filter((one) => !one.closest("[hidden]"))) {
        if (mine !== turn) return;
        await draw(chart, colours);
      }
      hintAll();
      root.dataset.drawn = colours;
    });
  }

  async function draw(chart, colours) {
    const place = chart.firstElementChild;
    try {
      const spec = JSON.parse(chart.parentElement.querySelector(".spec").textContent);
      if (chart.dataset.state === "failed") chart.dataset.state = "waiting"; // a hidden box has no width
      place.style.minHeight = `${place.offsetHeight}px`; // the page keeps its height meanwhile
      const room = place.clientWidth;
      const fitted = fit(room < NARROW ? wrapTitles(spec, room) : spec, room);
      const config = room < NARROW ? narrowed(themes[colours], room) : themes[colours];
      views.get(chart)?.finalize();
      const options = {
        mode: "vega-lite",
        renderer: "svg",
        ast: true, // expressions are walked, not compiled: the page may not evaluate text
        actions: false,
        defaultStyle: false,
        tooltip: { disableDefaultStyle: true },
        config,
      };
      views.set(chart, await vegaEmbed(place, fitted, options));
      chart.dataset.state = place.querySelector("svg") ? "drawn" : "failed";
    } catch (error) {
      chart.dataset.state = "failed";
      chart.dataset.error = String(error);
    }
    place.style.minHeight = "";
  }

  // Vega-Lite fits one plot into its box; parts side by side go under each other where there is little room.
  function fit(spec, room) {
    const facets = Object.keys(spec.encoding || {}).some((channel) => ["row", "column", "facet"].includes(channel));
    if ((spec.mark || spec.layer) && !facets) {
      const open = spec.width === undefined || spec.width === "container" || spec.width > room - 60;
      return open ? { autosize: { type: "fit-x", contains: "padding" }, ...spec, width: "container" } : spec;
    }
    if (spec.hconcat && room < NARROW) {
      const { hconcat, ...rest } = spec;
      return { ...rest, vconcat: hconcat.map((part) => slim(part, room)) };
    }
    if (spec.concat && room < NARROW) return { ...spec, columns: 1, concat: spec.concat.map((part) => slim(part, room)) };
    if (spec.facet && spec.spec && !spec.facet.row && !spec.facet.column && room < NARROW) {
      return { ...spec, columns: 1, spec: slim(spec.spec, room) };
    }
    return spec;
  }

  function slim(part, room) {
    const widest = Math.max(120, room - 90); // what axis and labels leave
    return typeof part.width === "object" ? part : { ...part, width: Math.min(part.width || widest, widest) };
  }

  // Little room: legends below, one under the other, and shorter names.
  function narrowed(config, room) {
    const bottom = { anchor: "start", direction: "vertical", margin: 8 };
    return {
      ...config,
      axis: { ...config.axis, labelLimit: 130 }, // and a legend begins where the axis ends
      legend: { ...config.legend, orient: "bottom", columns: 1, labelLimit: room - 175, layout: { bottom } },
      text: { ...config.text, fontSize: 10 },
    };
  }

  // Titles of axes in several lines, which Vega takes as a list.
  function wrapTitles(part, room) {
    for (const name of ["x", "y"]) {
      const channel = part.encoding?.[name];
      if (typeof channel?.title === "string") channel.title = wrap(channel.title, Math.max(20, room / 9));
    }
    for (const inner of part.layer || []) wrapTitles(inner, room);
    return part;
  }

  function wrap(text, most) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const line = lines[lines.length - 1];
      if (line && line.length + word.length >= most) lines.push(word);
      else lines[lines.length - 1] = line ? `${line} ${word}` : word;
    }
    return lines;
  }

  // ---- one example at a time --------------------------------------------------------------------------------------
  for (const part of document.querySelectorAll(".picked")) {
    const panels = [...part.querySelectorAll(".panel")];
    const picker = part.querySelector(".picker");
    const select = picker.querySelector("select");
    const keys = panels.map((panel) => panel.querySelector("h3").id);

    function outcome() {
      return `${select.selectedOptions[0].parentElement.label} · ${select.selectedIndex + 1} of ${keys.length}`;
    }

    function show(key) {
      panels.forEach((panel, place) => { panel.hidden = keys[place] !== key; });
      const panel = panels[keys.indexOf(key)];
      select.value = key;
      picker.querySelector(".outcome").textContent = outcome();
      picker.querySelector("[role=status]").textContent = `${outcome()}. ${panel.querySelector("p").textContent}`;
      const chart = panel.querySelector(".chart");
      if (chart) queue = queue.then(() => draw(chart, theme())).then(hintAll);
    }

    select.addEventListener("change", () => show(select.value));
    for (const button of picker.querySelectorAll(".step")) {
      button.addEventListener("click", () => {
        const place = keys.indexOf(select.value) + Number(button.dataset.step);
        show(keys[(place + keys.length) % keys.length]);
      });
    }
    const followLink = () => { if (keys.includes(location.hash.slice(1))) show(location.hash.slice(1)); };
    addEventListener("hashchange", followLink);
    followLink();
    picker.querySelector(".outcome").textContent = outcome();
    picker.hidden = panels.length < 2;
  }

  // A chart that fits its box follows the window by itself; crossing the mark means another arrangement.
  let wasNarrow = innerWidth < NARROW + 60;
  addEventListener("resize", () => {
    const narrow = innerWidth < NARROW + 60;
    if (narrow !== wasNarrow) drawAll();
    wasNarrow = narrow;
  });

  // ---- tables ---------------------------------------------------------------------------------------------------
  const inOrder = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  function sortBy(heading) {
    const table = heading.closest("table");
    const body = table.tBodies[0];
    const down = heading.getAttribute("aria-sort") === "ascending";
    const numeric = heading.classList.contains("number");
    const keyed = [...body.rows].map((row) => ({ row, key: sortKey(row.cells[heading.cellIndex], numeric) }));
    keyed.sort((one, other) => {
      if (one.key === null || other.key === null) return (one.key === null) - (other.key === null); // missing ones last
      const order = numeric ? one.key - other.key : inOrder.compare(one.key, other.key);
      return down ? -order : order;
    });
    body.append(...keyed.map(({ row }) => row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  function sortKey(cell, numeric) {
    if (cell.dataset.value === "") return null;
    return numeric ? Number(cell.dataset.value) : cell.textContent;
  }

  // A box that is wider inside than outside says so above it.
  function hintAll() {
    for (const hint of document.querySelectorAll(".hint")) {
      const box = hint.nextElementSibling;
      hint.hidden = box.scrollWidth <= box.clientWidth + 1;
      if (!hint.hidden) box.tabIndex = 0; // the keyboard can scroll it
    }
  }
  addEventListener("resize", hintAll);
  document.addEventListener("toggle", hintAll, true);
  hintAll();

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.classList.contains("sort")) sortBy(button.parentElement);
    if (button?.classList.contains("more")) {
      const whole = button.previousElementSibling.classList.toggle("whole");
      button.setAttribute("aria-expanded", String(whole));
      button.textContent = whole ? "less" : "more";
    }
  });

  // ---- contents -------------------------------------------------------------------------------------------------
  const contents = document.querySelector(".contents details");
  if (!matchMedia("(min-width: 74rem)").matches) contents.open = false;

  const links = [...contents.querySelectorAll("a")];
  const headings = links.map((link) => document.getElementById(link.hash.slice(1)));

  function markPlace() {
    const passed = headings.filter((heading) => heading.getBoundingClientRect().top < innerHeight * 0.3).length;
    links.forEach((link, place) => {
      if (place === Math.max(0, passed - 1)) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    });
  }

  let asked = false; // once a frame is enough
  addEventListener("scroll", () => {
    if (!asked) requestAnimationFrame(() => { asked = false; markPlace(); });
    asked = true;
  }, { passive: true });
  markPlace();

  // ---- settings -------------------------------------------------------------------------------------------------
  const copy = document.getElementById("page-copy");
  copy?.addEventListener("click", () => {
    // Selecting needs no permission, and leaves the text ready for the keyboard where copying is refused.
    getSelection().selectAllChildren(document.getElementById("page-toml"));
    let copied = false;
    try {
      copied = document.execCommand("copy");
    } catch {
      // refused: the text stays selected
    }
    document.getElementById("page-copied").textContent = copied ? "Copied" : "Selected: copy it with Ctrl or ⌘ C";
  });
  if (copy) copy.hidden = false;

  // The plotting code stands after this, so that what needs no chart works while it is read.
  document.addEventListener("DOMContentLoaded", drawAll);
})();
