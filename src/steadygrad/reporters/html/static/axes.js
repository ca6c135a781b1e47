"use strict";
/* What an axis shows and where its lines are. A log axis holds logarithms to base ten. */
{
  const { data } = steady;

  /* Lines of a log axis: one, two and five of each power of ten, or fewer where there are many powers. */
  const logTicks = (u, axis, low, high) => {
    const powers = high - low,
      every = Math.max(1, Math.ceil(powers / 6)),
      found = [];
    const leads = powers < 0.7 ? [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9] : powers < 2.6 ? [1, 2, 5] : [1];
    for (let power = Math.floor(low); power <= high; power++)
      if (power % every === 0) {
        leads.forEach((lead) => {
          const at = power + Math.log10(lead);
          if (at >= low && at <= high) found.push(at);
        });
      }
    return found.length > 1 ? found : [(low + high) / 2];
  };

  /* What the y axis shows: the values with a little air, and the clip line, which says more when it is in the picture. */
  const rangeOf = (log, percent, clipped) => (u, low, high) => {
    if (percent) return [Math.max(0, Math.min(90, Math.floor((low ?? 90) - 3))), 100.6];
    if (low === null || high === null) return [0, 1];
    const clips = clipped
      ? data.runs
          .map((run) => run.clip)
          .filter(Boolean)
          .map((clip) => (log ? Math.log10(clip) : clip))
      : [];
    const least = Math.min(low, ...clips),
      most = Math.max(high, ...clips);
    if (log) {
      const air = Math.max(0.035, (most - least) * 0.06);
      return [least - air, most + air];
    }
    const air = (most - least) * 0.08 || Math.abs(most) * 0.1 || 1;
    return [least >= 0 ? Math.max(0, least - air) : least - air, most + air];
  };

  steady.axes = { logTicks, rangeOf };
}
