// A metric against virtual time, updates or bytes; drag or keys to zoom.
const AGAINST = [['seconds', numbers.clock], ['updates', 'updates'], ['moved', 'bytes moved']];

function meanOf(column) {
  const there = column.filter((value) => value !== null);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
}

function bandOf(method, metric, against) {
  const values = method.values[metric];
  return method.against.seconds[0].map((_, i) => {
    const column = values.map((row) => row[i]).filter((value) => value !== null);
    const x = meanOf(method.against[against].map((row) => row[i]));
    return { x, mean: meanOf(column), low: Math.min(...column), high: Math.max(...column) };
  }).filter((point) => point.mean !== null && point.x !== null);
}

const curves = {
  metric: numbers.metric, against: 'seconds', whole: false, each: false, range: null, cursor: null,
  hidden: new Set(), legend: [],
};

function curveLimits(bands) {
  const end = Math.max(1e-9, ...bands.flat().map((point) => point.x));
  const [x0, x1] = curves.range ?? [0, end];
  const given = numbers.metrics.find((metric) => metric.name === curves.metric)?.axis;
  if (given && !curves.whole && !curves.range) return { x0, x1, end, y0: given[0], y1: given[1] };
  const inside = bands.flat().filter((point) => point.x >= x0 && point.x <= x1);
  const all = (inside.length ? inside : bands.flat()).flatMap((point) => [point.low, point.high]);
  const low = Math.min(...all), high = Math.max(...all), room = (high - low) / 20 || Math.abs(high) / 20 || 0.05;
  return all.length ? { x0, x1, end, y0: low - room, y1: high + room } : { x0, x1, end, y0: 0, y1: 1 };
}

function pathOf(points, x, y) {
  return points.map((point, i) => `${i ? 'L' : 'M'}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join('');
}

function drawCurves(made, width) {
  const shown = numbers.methods.map((method, i) => ({ method, i })).filter(({ i }) => !curves.hidden.has(i));
  const bands = shown.map(({ method }) => bandOf(method, curves.metric, curves.against));
  const limits = curveLimits(bands);
  const height = Math.max(260, Math.min(420, width * 0.55)), left = 52, top = 10, right = width - 8, bottom = height - 42;
  const x = (value) => left + (value - limits.x0) / (limits.x1 - limits.x0) * (right - left);
  const y = (value) => bottom - (value - limits.y0) / (limits.y1 - limits.y0) * (bottom - top);
  const svg = canvas(made, width, height, `${curves.metric} against ${curves.against}, ${shown.length} methods`);
  axes(svg, limits, { x, y, left, top, right, bottom }, Object.fromEntries(AGAINST)[curves.against], curves.metric);
  const clip = make(make(svg, 'clipPath', { id: 'inside' }), 'rect');
  Object.entries({ x: left, y: top, width: right - left, height: bottom - top }).forEach(([k, v]) => clip.setAttribute(k, v));
  const area = make(svg, 'g', { 'clip-path': 'url(#inside)' });
  shown.forEach(({ method, i }, n) => drawMethod(area, method, i, bands[n], x, y));
  const target = numbers.target;
  if (target && target.metric === curves.metric) {
    make(area, 'line', { class: 'target', x1: left, x2: right, y1: y(target.value), y2: y(target.value) });
    make(area, 'text', { class: 'small', x: left + 4, y: y(target.value) - 4 }, `target ${target.text}`);
  }
  const line = make(svg, 'line', { class: 'cursor', y1: top, y2: bottom, visibility: 'hidden' });
  const back = (px) => limits.x0 + (px - left) / (right - left) * (limits.x1 - limits.x0);
  made.place = () => {
    const at = curves.cursor;
    const seen = at !== null && at >= limits.x0 && at <= limits.x1;
    line.setAttribute('visibility', seen ? 'visible' : 'hidden');
    if (seen) ['x1', 'x2'].forEach((name) => line.setAttribute(name, x(at)));
    readout(at, bands, shown);
  };
  made.limits = limits;
  zoomable(made, svg, { left, right, top, bottom, back });
  made.place();
}

function axes(svg, limits, at, below, beside) {
  ticks(limits.x0, limits.x1, (at.right - at.left) / 90).forEach((value) => {
    make(svg, 'line', { class: 'grid', x1: at.x(value), x2: at.x(value), y1: at.top, y2: at.bottom });
    make(svg, 'text', { x: at.x(value), y: at.bottom + 16, 'text-anchor': 'middle' }, short(value));
  });
  ticks(limits.y0, limits.y1, (at.bottom - at.top) / 45).forEach((value) => {
    make(svg, 'line', { class: 'grid', x1: at.left, x2: at.right, y1: at.y(value), y2: at.y(value) });
    make(svg, 'text', { x: at.left - 6, y: at.y(value) + 4, 'text-anchor': 'end' }, short(value));
  });
  make(svg, 'text', { x: (at.left + at.right) / 2, y: at.bottom + 34, 'text-anchor': 'middle' }, below);
  const middle = (at.top + at.bottom) / 2;
  make(svg, 'text', { x: 12, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 12 ${middle})` }, beside);
}

function drawMethod(area, method, i, band, x, y) {
  if (!band.length) return;
  const look = { class: 'curve', style: `stroke:var(--m${i})`, 'stroke-dasharray': DASHES[method.dash] };
  if (curves.each) {
    method.values[curves.metric].forEach((row, seed) => {
      const points = row.map((value, j) => [method.against[curves.against][seed][j], value]).filter((p) => p[1] !== null && p[0] !== null);
      make(area, 'path', { ...look, class: 'curve thin', d: pathOf(points, x, y) });
    });
    return;
  }
  const outline = [...band.map((p) => [p.x, p.high]), ...band.map((p) => [p.x, p.low]).reverse()];
  if (method.seeds.length > 1) make(area, 'path', { class: 'band', style: `fill:var(--m${i})`, d: `${pathOf(outline, x, y)}Z` });
  make(area, 'path', { ...look, d: pathOf(band.map((p) => [p.x, p.mean]), x, y) });
}

// Shows each method's value at the cursor, or at the end.
function readout(at, bands, shown) {
  curves.legend.forEach((entry) => { entry.value.textContent = ''; });
  shown.forEach(({ i }, n) => {
    const band = bands[n];
    const point = at === null ? band.at(-1) : band.findLast((p) => p.x <= at + 1e-9);
    curves.legend[i].value.textContent = point ? even(point.mean) : '–';
  });
  curves.where.textContent = at === null ? 'at the end' : `at ${short(at)} ${Object.fromEntries(AGAINST)[curves.against]}`;
}

function zoomable(made, svg, at) {
  let from = null;
  const shade = make(svg, 'rect', { class: 'shade', y: at.top, height: at.bottom - at.top, visibility: 'hidden' });
  const inside = (event) => Math.min(at.right, Math.max(at.left, (event.clientX - svg.getBoundingClientRect().left) * svg.viewBox.baseVal.width / svg.getBoundingClientRect().width));
  svg.addEventListener('pointerdown', (event) => { from = inside(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener('pointermove', (event) => {
    const now = inside(event);
    curves.cursor = at.back(now);
    made.place();
    if (from === null) return;
    shade.setAttribute('visibility', 'visible');
    shade.setAttribute('x', Math.min(from, now));
    shade.setAttribute('width', Math.abs(now - from));
  });
  svg.addEventListener('pointerup', (event) => {
    const now = inside(event), start = from;
    from = null;
    if (start !== null && Math.abs(now - start) > 8) zoomTo(made, at.back(Math.min(start, now)), at.back(Math.max(start, now)));
  });
  svg.addEventListener('pointercancel', () => { from = null; shade.setAttribute('visibility', 'hidden'); });
  svg.addEventListener('pointerleave', () => { if (from === null) { curves.cursor = null; made.place(); } });
  svg.addEventListener('dblclick', () => zoomTo(made, null));
}

function zoomTo(made, low, high) {
  const end = made.limits.end;
  curves.range = low === null || (low <= 0 && high >= end) ? null : [Math.max(0, low), Math.min(end, high)];
  made.redraw();
}

function zoomBy(made, factor) {
  const { x0, x1 } = made.limits, middle = curves.cursor ?? (x0 + x1) / 2;
  zoomTo(made, middle - (middle - x0) * factor, middle + (x1 - middle) * factor);
}

function keys(made, event) {
  const { x0, x1 } = made.limits, step = (x1 - x0) / 50;
  const moved = { ArrowLeft: -step, ArrowRight: step }[event.key];
  if (moved) {
    curves.cursor = Math.min(x1, Math.max(x0, (curves.cursor ?? x1) + moved));
    made.place();
  } else if (event.key === '+' || event.key === '=') zoomBy(made, 0.5);
  else if (event.key === '-') zoomBy(made, 2);
  else if (event.key === '0') zoomTo(made, null);
  else return;
  event.preventDefault();
}

function legendOf(made) {
  const list = make(null, 'div', { class: 'legend', role: 'group', 'aria-label': 'methods: press to hide or show' });
  made.plot.before(list);
  numbers.methods.forEach((method, i) => {
    const entry = make(list, 'button', { type: 'button', 'aria-pressed': 'true' });
    const sample = make(entry, 'svg', { width: 30, height: 10, viewBox: '0 0 30 10', 'aria-hidden': 'true' });
    make(sample, 'path', { class: 'curve', style: `stroke:var(--m${i})`, 'stroke-dasharray': DASHES[method.dash], d: 'M0 5H30' });
    make(entry, 'span', {}, cut(method.name, 40));
    const value = make(entry, 'b');
    entry.addEventListener('click', () => {
      curves.hidden.has(i) ? curves.hidden.delete(i) : curves.hidden.add(i);
      entry.setAttribute('aria-pressed', String(!curves.hidden.has(i)));
      made.redraw();
    });
    curves.legend.push({ value });
  });
  curves.where = make(list, 'span', { class: 'note' });
}

function startCurves() {
  if (!numbers.metrics.length) {
    document.getElementById('f-curves').textContent = 'There are no measurements yet.';
    return;
  }
  const made = figure('curves', drawCurves);
  const change = (name) => (value) => { curves[name] = value; if (name === 'against') { curves.range = curves.cursor = null; } made.redraw(); };
  choice(made, 'against', AGAINST, curves.against, change('against'));
  if (numbers.metrics.length > 1) choice(made, 'metric', numbers.metrics.map(({ name }) => [name, name]), curves.metric, change('metric'));
  choice(made, 'axis', [['', 'without the start'], ['all', 'all values']], '', (value) => change('whole')(value === 'all'));
  if (numbers.methods.some((method) => method.seeds.length > 1)) choice(made, 'seeds', [['', 'mean and band'], ['each', 'each seed']], '', (value) => change('each')(value === 'each'));
  button(made.controls, '+', 'zoom in', () => zoomBy(made, 0.5));
  button(made.controls, '−', 'zoom out', () => zoomBy(made, 2));
  button(made.controls, 'show all', 'show the whole run', () => zoomTo(made, null));
  legendOf(made);
  made.plot.tabIndex = 0;
  made.plot.setAttribute('role', 'group');
  made.plot.setAttribute('aria-label', `${made.label}: arrows move the cursor, plus and minus zoom, 0 shows all`);
  made.plot.addEventListener('keydown', (event) => keys(made, event));
  asNumbers(made, [numbers.clock, ...numbers.methods.map(({ name }) => name)], () => {
    const bands = numbers.methods.map((method) => bandOf(method, numbers.metric, 'seconds'));
    const grid = [...new Set(bands.flat().map((point) => point.x))].sort((a, b) => a - b);
    return grid.map((at) => [short(at), ...bands.map((band) => band.find((point) => point.x === at)?.mean ?? null)]);
  });
}
