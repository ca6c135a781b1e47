"use strict";
/* The curves: one uPlot a figure, all with the same steps in view. */
{
  const { data, color, runColor, faint, number, count, element, tip } = steady;
  const { logTicks, rangeOf } = steady.axes,
    { drawMarks, drawClip, nearby } = steady.marks;
  const charts = [];
  let full = null,
    viewing = null;

  /* (run, label, points, colour) of every line of a figure. */
  const linesOf = (kind) =>
    data.runs.flatMap((run, place) => {
      const own = data.runs.length > 1 ? run.name : "";
      if (kind === "terms") {
        return Object.entries(run.terms || {}).map(([name, points], at) => ({
          place,
          points,
          label: own ? own + " " + name : name,
          stroke: () => runColor(place + at),
        }));
      }
      const lines = run.curves[kind]
        ? [{ place, points: run.curves[kind], label: own, stroke: () => runColor(place), main: true }]
        : [];
      ((run.curves[kind] || {}).earlier || []).forEach((points) =>
        lines.push({
          place,
          points,
          label: (own + " attempt " + points.attempt).trim(),
          stroke: () => faint(runColor(place), 0.4),
          earlier: true,
        }),
      );
      if (kind === "loss")
        (run.ranks || []).forEach((rank, at) =>
          lines.push({
            place,
            points: rank.loss,
            label: (own + " rank " + rank.rank).trim(),
            stroke: () => faint(runColor(place + at + 1), 0.65),
          }),
        );
      return lines;
    });

  /* A log axis holds logarithms: uPlot's own log scale has no labels beyond 1e17, where an exploding loss soon is. */
  const tablesOf = (lines, log) => {
    const held = (values) => (log ? values.map((value) => (value === null ? null : Math.log10(value))) : values);
    const tables = lines.map(({ points }) => [
      points.x,
      ...["low", "high", "mid", "smooth"].filter((name) => points[name]).map((name) => held(points[name])),
    ]);
    /* Where an earlier attempt ends its line ends, though other lines have steps there. */
    const gaps = tables.map((table, at) => table.map(() => (lines[at].earlier ? 2 : 1)));
    return tables.length > 1 ? uPlot.join(tables, gaps) : tables[0];
  };

  const isPositive = (lines) =>
    lines.every(({ points }) => (points.low || points.mid).every((value) => value === null || value > 0));

  const tell = (chart, lines, unit) => {
    const { left, top, idx } = chart.cursor;
    if (left === undefined || left < 0 || idx === null || idx === undefined || !chart.hovered) {
      if (chart.hovered) tip.hide();
      return;
    }
    const at = chart.data[0][idx],
      parts = [];
    const stretch = Math.max(...lines.map(({ points }) => points.stretch || 1));
    parts.push(element("b", stretch > 1 ? "steps " + count(at) + "–" + count(at + stretch - 1) : "step " + count(at)));
    lines.forEach((line) => {
      const { x, mid, low, high } = line.points;
      let place = x.findIndex((step) => step > at) - 1;
      if (place < -1) place = x.length - 1;
      if (place < 0 || at > x[x.length - 1] + (line.points.stretch || 1)) return;
      const row = element("div"),
        key = element("span", undefined, "key");
      key.style.borderColor = line.stroke();
      row.append(key, (line.label ? line.label + " " : "") + number(mid[place]) + unit);
      if (low && low[place] !== null && low[place] !== high[place])
        row.append(element("span", " (" + number(low[place]) + " to " + number(high[place]) + ")", "muted"));
      parts.push(row);
    });
    nearby(chart, lines).forEach(([, run, [name, first, , told]]) =>
      parts.push(
        element(
          "div",
          "▾ " +
            (data.runs.length > 1 ? run.name + ", " : "") +
            "incident " +
            name +
            ", step " +
            count(first) +
            ": " +
            told,
          "bad",
        ),
      ),
    );
    const box = chart.over.getBoundingClientRect();
    tip.show(scrollX + box.left + left, scrollY + box.top + top, parts);
  };

  const make = (figure) => {
    const kind = figure.dataset.curve,
      lines = linesOf(kind);
    if (!lines.length) {
      figure.remove();
      return;
    }
    const log = Boolean(figure.dataset.log) && isPositive(lines),
      percent = Boolean(figure.dataset.percent),
      small = figure.classList.contains("compact");
    const series = [{}],
      bands = [];
    lines.forEach((line) => {
      if (line.points.low) {
        const at = series.length;
        series.push(
          { stroke: null, width: 0, points: { show: false } },
          { stroke: null, width: 0, points: { show: false } },
        );
        bands.push({ series: [at + 1, at], fill: () => faint(line.stroke().slice(0, 7), line.main ? 0.2 : 0.1) });
      }
      const stroke = line.points.smooth ? () => faint(line.stroke(), 0.38) : line.stroke;
      series.push({
        stroke,
        width: line.points.smooth ? 1 : line.main ? 1.6 : 1.1,
        points: { show: line.points.x.length < 40 && !line.earlier, size: 4, fill: line.stroke },
      });
      if (line.points.smooth) series.push({ stroke: line.stroke, width: 2, points: { show: false } });
    });
    const axis = {
      stroke: () => color("soft"),
      font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      grid: { stroke: () => color("line"), width: 1 },
      ticks: { show: false },
    };
    const sized = () => ({
      width: Math.max(200, figure.clientWidth - parseFloat(getComputedStyle(figure).paddingLeft) * 2),
      height: small ? 190 : 280,
    });
    const chart = new uPlot(
      {
        ...sized(),
        series,
        bands,
        padding: [14, 14, 0, 2],
        legend: { show: false },
        select: { show: true },
        cursor: {
          sync: { key: "steps", scales: ["x", null] },
          drag: { x: true, y: false, setScale: false },
          points: { show: false },
          y: false,
        },
        scales: { x: { time: false }, y: { range: rangeOf(log, percent, figure.dataset.clip) } },
        axes: [
          {
            ...axis,
            label: "step",
            labelSize: 16,
            labelGap: 0,
            values: (u, values) => values.map((v) => (v % 1 ? "" : count(v))),
            space: 64,
            size: 28,
          },
          {
            ...axis,
            size: (u, values) => Math.max(42, 12 + 6.6 * Math.max(0, ...(values || []).map((v) => String(v).length))),
            values: (u, values) =>
              percent
                ? values.map((v) => (v > 100 ? "" : number(v) + " %"))
                : values.map((v) => (v === null ? "" : number(log ? Number((10 ** v).toPrecision(3)) : v))),
            space: 34,
            ...(log ? { splits: logTicks, filter: (u, splits) => splits } : {}),
          },
        ],
        hooks: {
          draw: [(u) => drawMarks(u, lines), ...(figure.dataset.clip ? [(u) => drawClip(u, log)] : [])],
          setCursor: [(u) => tell(u, lines, percent ? " %" : "")],
          setSelect: [
            (u) => {
              const { left, width } = u.select;
              if (width > 6) steady.view(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
      },
      tablesOf(lines, log),
      figure,
    );
    chart.over.addEventListener("mouseenter", () => {
      chart.hovered = true;
    });
    chart.over.addEventListener("mouseleave", () => {
      chart.hovered = false;
      tip.hide();
    });
    /* A finger that moves sideways selects as a mouse does; up and down it scrolls the page. */
    for (const [heard, said] of [
      ["pointerdown", "mousedown"],
      ["pointermove", "mousemove"],
      ["pointerup", "mouseup"],
      ["pointercancel", "mouseup"],
    ]) {
      chart.over.addEventListener(heard, (event) => {
        if (event.pointerType !== "touch") return;
        chart.hovered = said !== "mouseup";
        const { clientX, clientY } = event,
          told = { clientX, clientY, movementX: 1, bubbles: true }; // uPlot passes over a move of nothing
        (said === "mouseup" ? document : chart.over).dispatchEvent(new MouseEvent(said, told));
        if (said === "mouseup") tip.hide();
      });
    }
    chart.over.addEventListener("dblclick", () => steady.view(null));
    chart.over.addEventListener("click", () => {
      const [hit] = nearby(chart, lines);
      if (hit && hit[2][4]) location.hash = hit[2][4];
    });
    if (log) figure.querySelector("figcaption").append(element("span", " log scale", "muted"));
    charts.push(chart);
    steady.resize.push(() => chart.setSize(sized()));
    legend(figure, lines);
  };

  const legend = (figure, lines) => {
    const box = element("div", undefined, "legend"),
      add = (text, stroke, kind) => {
        const entry = element("span"),
          key = element("span", undefined, "key " + (kind || ""));
        if (stroke)
          steady.redraw.push(() => {
            key.style.borderColor = stroke();
          });
        entry.append(key, element("span", text));
        box.append(entry);
      };
    lines.filter((line) => line.label && !line.earlier).forEach((line) => add(line.label, line.stroke));
    const only = lines.find((line) => line.main && !line.label && !line.points.smooth);
    if (only && !figure.classList.contains("compact")) add(only.points.stretch ? "mean of each stretch" : "each step", only.stroke);
    const again = lines.find((line) => line.earlier);
    if (again) add("earlier attempts, rolled back or lost", again.stroke);
    if (figure.dataset.clip)
      new Set(data.runs.map((run) => run.clip).filter(Boolean)).forEach((clip) =>
        add("clipped to " + number(clip), () => color("soft"), "dash"),
      );
    if (data.runs.some((run) => run.incidents.length) && !figure.classList.contains("compact"))
      add("incidents", () => color(data.runs.length > 1 ? "soft" : "bad"), "dash");
    const wide = Math.max(...lines.map(({ points }) => points.stretch || 0)),
      smoothed = Math.max(...lines.map(({ points }) => points.window || 0));
    if (wide && !figure.classList.contains("compact"))
      box.append(element("span", "band: lowest to highest of every " + count(Math.ceil(wide)) + " steps"));
    if (lines.some(({ points }) => points.smooth))
      box.append(
        element("span", (wide ? "thin: mean of each stretch" : "thin: every step") + ", bold: moving mean over " + count(smoothed) + " steps"),
      );
    if (box.childElementCount) figure.append(box);
  };

  /* Shows these steps in every chart and heat map; null is the whole run. */
  steady.view = (first, last) => {
    viewing = first === null ? null : [Math.max(full[0], first), Math.min(full[1], last)];
    const [min, max] = viewing || full;
    if (!(max > min)) return;
    charts.forEach((chart) => chart.setScale("x", { min, max }));
    document.getElementById("reset").hidden = viewing === null;
    (steady.heats || []).forEach((heat) => heat.draw());
  };
  steady.viewed = () => viewing || full;
  /* A heat map shows its own run in full, for it shares its axis with nothing else. */
  steady.viewedOf = (run) => viewing || [run.steps[0], Math.max(run.steps[1], run.steps[0] + 1)];

  const ends = data.runs.flatMap((run) => run.steps || []);
  full = [Math.min(...ends), Math.max(Math.max(...ends), Math.min(...ends) + 1)];
  document.querySelectorAll("figure.chart").forEach(make);
  steady.view(null);
  steady.redraw.push(() => charts.forEach((chart) => chart.redraw(false, true)));
}
