// Staleness of updates, one row per method, on a logarithmic axis so that small and large values are both readable.
function drawStaleness(made, width) {
  const rows = numbers.methods.map((method, i) => ({ name: method.name, i, of: method.staleness }));
  const letters = width < 500 ? 14 : 26;
  const left = Math.min(width * 0.4, 12 + 7 * Math.max(...rows.map((row) => Math.min(letters, row.name.length))));
  const each = 26, right = width - 14, bottom = rows.length * each + 6;
  const most = Math.max(1, ...rows.map((row) => row.of?.largest ?? 0));
  const x = (value) => left + Math.log1p(value) / Math.log1p(most) * (right - left);
  const svg = canvas(made, width, bottom + 40, made.label);
  let last = -Infinity;
  [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].filter((value) => value <= most).forEach((value) => {
    make(svg, 'line', { class: 'grid', x1: x(value), x2: x(value), y1: 4, y2: bottom });
    if (x(value) - last < 30) return;
    last = x(value);
    make(svg, 'text', { x: x(value), y: bottom + 16, 'text-anchor': 'middle' }, short(value));
  });
  make(svg, 'text', { x: (left + right) / 2, y: bottom + 34, 'text-anchor': 'middle' }, 'staleness (versions)');
  rows.forEach(({ name, i, of }, row) => {
    const y = row * each + each / 2 + 4, colour = `--c:var(--m${i})`;
    make(svg, 'text', { x: left - 8, y: y + 4, 'text-anchor': 'end' }, cut(name, letters));
    if (!of) return;
    const line = make(svg, 'g', { class: 'spread', style: colour });
    make(line, 'title', {}, `${name}: median ${of.median}, mean ${short(of.mean)}, 5 % to 95 %: ${of.low} to ${of.high}, maximum ${of.largest}`);
    make(line, 'rect', { class: 'hit', x: left, y: y - each / 2, width: right - left, height: each });
    make(line, 'path', { d: `M${x(of.low)} ${y}H${x(of.high)}` });
    make(line, 'rect', { class: 'box', x: x(of.lower), y: y - 7, width: Math.max(1, x(of.upper) - x(of.lower)), height: 14 });
    make(line, 'path', { class: 'bold', d: `M${x(of.median)} ${y - 8}V${y + 8}` });
    make(line, 'circle', { cx: x(of.mean), cy: y, r: 3.5 });
    make(line, 'path', { d: `M${x(of.largest) - 4} ${y - 4}l8 8m0 -8l-8 8` });
  });
}

function startStaleness() {
  const made = figure('staleness', drawStaleness);
  if (!made) return;
  const headings = ['method', 'updates', 'mean', '5 %', '25 %', 'median', '75 %', '95 %', 'maximum'];
  asNumbers(made, headings, () => numbers.methods.filter((method) => method.staleness).map(({ name, staleness: s }) => [
    name, s.count, s.mean, s.low, s.lower, s.median, s.upper, s.high, s.largest]));
}
