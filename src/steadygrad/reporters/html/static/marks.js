"use strict";
/* Incidents and the clip line, drawn over the curves, and which incident the pointer is at. */
{
  const { data, color, runColor, faint } = steady;

  /* Marks of incidents: a thin line each, and a triangle on top that can be aimed at. */
  const drawMarks = (chart, lines) => {
    const { ctx, bbox } = chart,
      ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    const shown = new Set(lines.map((line) => line.place));
    data.runs.forEach((run, place) => {
      if (!shown.has(place)) return;
      const ink = data.runs.length > 1 ? runColor(place) : color("bad");
      const thick = run.incidents.length > 150 ? 0.35 : 0.75;
      run.incidents.forEach(([, first, last]) => {
        const left = chart.valToPos(first, "x", true),
          right = Math.max(left, chart.valToPos(last, "x", true));
        if (right < bbox.left || left > bbox.left + bbox.width) return;
        if (right - left > ratio) {
          ctx.fillStyle = faint(ink, 0.14);
          ctx.fillRect(left, bbox.top, right - left, bbox.height);
        }
        ctx.strokeStyle = faint(ink, thick);
        ctx.lineWidth = ratio;
        ctx.setLineDash([3 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(left, bbox.top);
        ctx.lineTo(left, bbox.top + bbox.height);
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.fillStyle = ink;
        const size = 4.5 * ratio;
        ctx.beginPath();
        ctx.moveTo(left - size, bbox.top - size - 2);
        ctx.lineTo(left + size, bbox.top - size - 2);
        ctx.lineTo(left, bbox.top + 2);
        ctx.fill();
      });
    });
    ctx.restore();
  };

  const drawClip = (chart, log) => {
    const { ctx, bbox } = chart;
    new Set(data.runs.map((run) => run.clip).filter(Boolean)).forEach((clip) => {
      const y = Math.round(chart.valToPos(log ? Math.log10(clip) : clip, "y", true));
      if (!(y >= bbox.top && y <= bbox.top + bbox.height)) return;
      ctx.save();
      ctx.strokeStyle = color("soft");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([7 * devicePixelRatio, 5 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.restore();
    });
  };

  const nearby = (chart, lines) => {
    const found = [],
      shown = new Set(lines.map((line) => line.place)),
      at = chart.cursor.left;
    data.runs.forEach(
      (run, place) =>
        shown.has(place) &&
        run.incidents.forEach((incident) => {
          const left = chart.valToPos(incident[1], "x"),
            right = chart.valToPos(incident[2], "x");
          const off = at < left ? left - at : Math.max(0, at - right);
          if (off <= 7) found.push([off, run, incident]);
        }),
    );
    return found.sort((a, b) => a[0] - b[0]).slice(0, 3);
  };

  steady.marks = { drawMarks, drawClip, nearby };
}
