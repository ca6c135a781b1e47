"use strict";
/* Colours come from the style sheet, so that a canvas follows the page from light to dark. */
const steady = { data: JSON.parse(document.getElementById("data").textContent), redraw: [], resize: [] };

steady.color = (name) =>
  getComputedStyle(document.documentElement)
    .getPropertyValue("--" + name)
    .trim();
steady.runColor = (place) => steady.color("run" + (place % 8));
steady.faint = (hex, share) =>
  hex +
  Math.round(share * 255)
    .toString(16)
    .padStart(2, "0");
steady.isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
steady.redrawAll = () => steady.redraw.forEach((draw) => draw());
steady.resizeAll = () => steady.resize.forEach((fit) => fit());

steady.number = (value) => {
  if (value === null || value === undefined) return "not finite";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const short = Number(value.toPrecision(4));
  if (size >= 1e6 || size < 1e-3) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  return size >= 1e4 ? Math.round(value).toLocaleString("en") : String(short);
};
steady.count = (value) => Math.round(value).toLocaleString("en");

/* An element with text in it. Text only: what a run says is never read as markup. */
steady.element = (tag, text, kind) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};

steady.tip = {
  box: document.getElementById("tip"),
  show(x, y, parts) {
    this.box.replaceChildren(...parts);
    this.box.hidden = false;
    const width = this.box.offsetWidth,
      edge = document.documentElement.clientWidth;
    const left = x + 16 + width > scrollX + edge - 8 ? x - width - 16 : x + 16;
    this.box.style.left = Math.max(scrollX + 8, Math.min(left, scrollX + edge - width - 8)) + "px";
    this.box.style.top = y + 16 + "px";
  },
  hide() {
    this.box.hidden = true;
  },
};

document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = steady.isDark() ? "light" : "dark";
  steady.redrawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", steady.redrawAll);
