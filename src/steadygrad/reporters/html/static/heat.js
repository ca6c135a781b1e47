"use strict";
/* The heat map: a row a layer, a column a stretch of steps, colour on a log scale. */
{
  const { data, color, number, count, element, tip } = steady;
  const MISSING = 0,
    ZERO = 1,
    FIRST = 2,
    LAST = 253,
    INFINITE = 254;
  /* From dark to bright, even to the eye: small norms sink into the page, large ones stand out. */
  const STOPS = [
    [68, 1, 84],
    [70, 50, 126],
    [54, 92, 141],
    [39, 127, 142],
    [31, 161, 135],
    [74, 193, 109],
    [160, 218, 57],
    [253, 231, 37],
  ];
  const ramp = (share) => {
    const at = share * (STOPS.length - 1),
      low = Math.min(Math.floor(at), STOPS.length - 2),
      part = at - low;
    return (
      "rgb(" + STOPS[low].map((value, i) => Math.round(value + (STOPS[low + 1][i] - value) * part)).join(" ") + ")"
    );
  };
  const paint = (code) =>
    code === MISSING
      ? color("wash")
      : code === ZERO
        ? color("line")
        : code >= INFINITE
          ? color("alarm")
          : ramp((code - FIRST) / (LAST - FIRST));
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

  steady.heats = [...document.querySelectorAll("figure.heat")].map((figure) => {
    const run = data.runs[Number(figure.dataset.run)],
      heat = run.heat;
    const levels = heat.levels.map(({ names, codes }) => ({ names, codes: bytes(codes) }));
    const map = element("div", undefined, "map"),
      canvas = element("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Gradient norm of every layer over the run");
    map.append(canvas);
    figure.append(map);
    let level = 0,
      label = 0;

    const rowHeight = () => (level ? 9 : Math.max(11, Math.min(20, 420 / levels[level].names.length)));
    const short = (ctx, name, room) => {
      if (ctx.measureText(name).width <= room) return name;
      let cut = name;
      while (cut.length > 3 && ctx.measureText("…" + cut).width > room) cut = cut.slice(1);
      return "…" + cut;
    };
    const draw = () => {
      const { names, codes } = levels[level],
        columns = heat.steps.length,
        ratio = devicePixelRatio;
      const width = Math.max(200, figure.clientWidth - 2 * parseFloat(getComputedStyle(figure).paddingLeft)),
        rows = rowHeight(),
        height = rows * names.length + 24;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = height + "px";
      const ctx = canvas.getContext("2d");
      ctx.scale(ratio, ratio);
      ctx.font = (rows < 11 ? 9 : 11) + "px system-ui, sans-serif";
      label = Math.min(width * 0.36, 12 + Math.max(...names.map((name) => ctx.measureText(name).width)));
      const [from, to] = steady.viewedOf(run),
        place = (step) => label + ((width - label - 4) * (step - from)) / (to - from);
      const last =
        columns > 1
          ? heat.steps[columns - 1] + Math.max(heat.width, heat.steps[columns - 1] - heat.steps[columns - 2])
          : to;
      ctx.save();
      ctx.beginPath();
      ctx.rect(label, 0, width - label - 4, rows * names.length);
      ctx.clip();
      /* A good cell reaches to the next good one. A bad one is as wide as its own steps, yet at least two pixels: one bad
         step of two hundred thousand must still be seen, and must not look like a hundred. */
      const inner = rows - (rows > 10 ? 1 : 0),
        bad = color("alarm");
      for (let row = 0; row < names.length; row++) {
        const marks = [];
        let start = null,
          code = MISSING;
        const fill = (end) => {
          if (start === null || end < label || start > width) return;
          ctx.fillStyle = paint(code);
          ctx.fillRect(start, row * rows, Math.max(0.6, end - start + 0.4), inner);
        };
        for (let column = 0; column < columns; column++) {
          const next = codes[row * columns + column],
            left = place(heat.steps[column]);
          if (next >= INFINITE) {
            marks.push(left);
            continue;
          }
          fill(left);
          start = left;
          code = next;
        }
        fill(place(Math.min(last, to)));
        ctx.fillStyle = bad;
        marks.forEach((left) => ctx.fillRect(left, row * rows, Math.max(2, place(heat.width) - place(0)), inner));
      }
      ctx.restore();
      ctx.fillStyle = color("soft");
      ctx.textBaseline = "middle";
      ctx.textAlign = "right";
      names.forEach((name, row) => ctx.fillText(short(ctx, name, label - 10), label - 7, row * rows + rows / 2));
      ctx.textBaseline = "top";
      ctx.font = "12px system-ui, sans-serif";
      const rough = (to - from) / Math.max(2, (width - label) / 90),
        power = 10 ** Math.floor(Math.log10(rough));
      const every = Math.max(
        1,
        [1, 2, 5, 10].map((by) => by * power).find((size) => size >= rough),
      );
      for (let step = Math.ceil(from / every) * every; step <= to; step += every) {
        const at = place(step),
          half = ctx.measureText(count(step)).width / 2;
        ctx.textAlign = at - half < label ? "left" : at + half > width ? "right" : "center";
        ctx.fillText(count(step), ctx.textAlign === "right" ? width : at, rows * names.length + 8);
      }
    };

    canvas.addEventListener("mousemove", (event) => {
      const { names, codes } = levels[level],
        columns = heat.steps.length,
        box = canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top) / rowHeight()),
        [from, to] = steady.viewedOf(run);
      const step = from + ((event.clientX - box.left - label) / (box.width - label - 4)) * (to - from);
      let column = heat.steps.findIndex((first) => first > step) - 1;
      if (column < -1) column = columns - 1;
      if (row < 0 || row >= names.length || event.clientX - box.left < label || column < 0) {
        tip.hide();
        return;
      }
      const code = codes[row * columns + column],
        first = heat.steps[column];
      const value =
        code === MISSING
          ? "not measured"
          : code === ZERO
            ? "exactly zero"
            : code === INFINITE
              ? "infinite"
              : code > INFINITE
                ? "NaN"
                : "norm " +
                  number(
                    Number(
                      (10 ** (heat.low + ((code - FIRST) / (LAST - FIRST)) * (heat.high - heat.low))).toPrecision(2),
                    ),
                  );
      tip.show(event.pageX, event.pageY, [
        element("b", names[row]),
        element(
          "div",
          value +
            (heat.width > 1
              ? ", largest of steps " + count(first) + "–" + count(first + heat.width - 1)
              : ", step " + count(first)),
        ),
      ]);
    });
    canvas.addEventListener("mouseleave", () => tip.hide());
    canvas.addEventListener("dblclick", () => steady.view(null));
    const button = figure.querySelector("button[data-level]");
    if (button)
      button.addEventListener("click", () => {
        level = 1 - level;
        button.textContent = level ? "By layer" : "All " + levels[1].names.length + " rows";
        draw();
      });

    const scale = element("div", undefined, "scale"),
      bar = element("canvas"),
      bad = element("span"),
      key = element("span", undefined, "swatch");
    bar.width = 150;
    bar.height = 1;
    const pen = bar.getContext("2d");
    for (let x = 0; x < 150; x++) {
      pen.fillStyle = ramp(x / 149);
      pen.fillRect(x, 0, 1, 1);
    }
    key.style.background = "var(--alarm)";
    bad.append(key, "not finite");
    scale.append(element("span", number(10 ** heat.low)), bar, element("span", number(10 ** heat.high)), bad);
    figure.append(scale);
    steady.redraw.push(draw);
    steady.resize.push(draw);
    draw();
    return { draw };
  });
}
