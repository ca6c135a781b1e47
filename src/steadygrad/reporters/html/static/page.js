"use strict";
/* What is left: going to an incident, resizing, printing. */
{
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", open);
  open();

  document.getElementById("reset").addEventListener("click", () => steady.view(null));
  document.querySelectorAll("button[data-first]").forEach((button) =>
    button.addEventListener("click", () => {
      const first = Number(button.dataset.first),
        last = Number(button.dataset.last),
        [from, to] = steady.viewed();
      const room = Math.max(30, Math.min(400, (to - from) / 20));
      steady.view(first - room, last + room);
      document
        .getElementById("curves")
        .scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    }),
  );

  let width = innerWidth,
    waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(steady.resizeAll);
  });

  /* Paper is white, narrow, and cannot be clicked. */
  let before = null;
  addEventListener("beforeprint", () => {
    if (before) return;
    before = {
      theme: document.documentElement.dataset.theme,
      closed: [...document.querySelectorAll("details:not([open])")],
    };
    document.documentElement.dataset.theme = "light";
    before.closed.forEach((part) => {
      part.open = true;
    });
    document.querySelector("main").style.width = "680px";
    steady.resizeAll();
    steady.redrawAll();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) document.documentElement.dataset.theme = before.theme;
    else delete document.documentElement.dataset.theme;
    before.closed.forEach((part) => {
      part.open = false;
    });
    document.querySelector("main").style.width = "";
    before = null;
    steady.resizeAll();
    steady.redrawAll();
  });

  steady.redrawAll();
  document.documentElement.dataset.ready = "yes";
}
