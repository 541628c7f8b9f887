// Heat maps: contributions of clients and distribution of data.
const STEPS = 8; // shades on each side

// amount: white to full colour; ratio: two colours that meet at 1; metric: minimum to maximum.
const SHADES = {
  amount: (values) => {
    const most = Math.max(1e-12, ...values);
    return { shade: (value) => Math.ceil(value / most * STEPS - 1e-9), from: '0', to: short(most), text: short };
  },
  ratio: () => ({ shade: (value) => (value > 0 ? Math.max(-STEPS, Math.min(STEPS, Math.round(Math.log2(value) / 2 * STEPS))) : -STEPS), from: '¼× or less', to: '4× or more', middle: '1×', text: (value) => (value === null ? '–' : `${value.toFixed(value < 10 ? 1 : 0)}×`) }),
  metric: (values) => {
    const low = Math.min(...values), high = Math.max(...values);
    return { shade: (value) => (high > low ? Math.round((value - low) / (high - low) * STEPS) : STEPS), from: short(low), to: short(high), text: even };
  },
};

function fill(shade) {
  return `fill:var(${shade < 0 ? '--less' : '--more'});fill-opacity:${(Math.abs(shade) / STEPS).toFixed(3)}`;
}

function drawGrid(table, kind, down, across) {
  return (made, width) => {
    const count = table.rows.length, wide = table.columns.length, letters = width < 500 ? 8 : 16;
    const each = Math.max(4, Math.min(18, 540 / count)), named = each >= 11;
    const longest = Math.max(...table.rows.map((name) => Math.min(letters, name.length)));
    const most = 7 * Math.max(...table.columns.map((name) => Math.min(16, name.length))), left = (named ? 12 + 7 * longest : 8) + 16;
    const slanted = most > Math.min(64, (width - 8 - left) / wide) - 4;
    const right = Math.min(width - 8 - (slanted ? most * 0.6 : 0), left + wide * 64), cell = (right - left) / wide;
    const head = slanted ? 14 + most * 0.74 : 22;
    const every = Math.max(1, Math.ceil((slanted ? 13 : 0) / cell));
    const known = table.values.flat().filter((value) => value !== null);
    const scale = SHADES[kind](known);
    const svg = canvas(made, width, head + count * each + 46, `${made.label}: ${count} by ${wide}`);
    table.columns.forEach((name, i) => {
      if (i % every) return;
      const x = left + (i + 0.5) * cell, y = head - 6;
      make(svg, 'text', slanted ? { x, y, transform: `rotate(-45 ${x} ${y})` } : { x, y, 'text-anchor': 'middle' }, cut(name, 16));
    });
    const paths = new Map();
    table.values.forEach((row, r) => row.forEach((value, c) => {
      const shade = value === null ? 0 : scale.shade(value);
      const gap = each >= 6 && cell >= 6 ? 1 : 0;
      const d = `M${(left + c * cell).toFixed(1)} ${(head + r * each).toFixed(1)}h${(cell - gap).toFixed(1)}v${(each - gap).toFixed(1)}h${(gap - cell).toFixed(1)}z`;
      paths.set(shade, (paths.get(shade) ?? '') + d);
    }));
    make(svg, 'rect', { class: 'paper', x: left, y: head, width: right - left, height: count * each });
    paths.forEach((d, shade) => { if (shade) make(svg, 'path', { d, style: fill(shade) }); });
    if (cell >= 36 && each >= 14) table.values.forEach((row, r) => row.forEach((value, c) => {
      const strong = value === null ? 0 : Math.abs(scale.shade(value)) / STEPS;
      const look = strong > 0.85 ? 'cell full' : strong > 0.5 ? 'cell half' : 'cell'; // readable text colour
      make(svg, 'text', { class: look, x: left + (c + 0.5) * cell, y: head + (r + 0.5) * each + 4, 'text-anchor': 'middle' }, scale.text(value));
    }));
    if (named) table.rows.forEach((name, r) => make(svg, 'text', { class: 'small', x: left - 6, y: head + (r + 0.5) * each + 4, 'text-anchor': 'end' }, cut(name, letters)));
    const middle = head + count * each / 2;
    make(svg, 'text', { class: 'small', x: 10, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 10 ${middle})` }, down);
    key(svg, scale, left, head + count * each + 14);
    const hint = make(svg, 'title');
    svg.addEventListener('pointermove', (event) => {
      const r = Math.floor((event.offsetY - head) / each), c = Math.floor((event.offsetX - left) / cell);
      const value = table.values[r]?.[c];
      hint.textContent = value === undefined ? '' : `${down} ${table.rows[r]}, ${across} ${table.columns[c]}: ${scale.text(value)}`;
    });
  };
}

function key(svg, scale, left, top) {
  const shades = Array.from({ length: scale.middle ? 2 * STEPS + 1 : STEPS + 1 }, (_, i) => (scale.middle ? i - STEPS : i));
  const x = left + 7 * scale.from.length + 8;
  make(svg, 'text', { class: 'small', x: x - 6, y: top + 10, 'text-anchor': 'end' }, scale.from);
  make(svg, 'rect', { class: 'paper', x, y: top, width: shades.length * 8, height: 12 });
  shades.forEach((shade, i) => make(svg, 'rect', { x: x + i * 8, y: top, width: 8, height: 12, style: fill(shade) }));
  if (scale.middle) make(svg, 'text', { class: 'small', x: x + shades.length * 4, y: top + 25, 'text-anchor': 'middle' }, scale.middle);
  make(svg, 'text', { class: 'small', x: x + shades.length * 8 + 6, y: top + 10 }, scale.to);
}

function startGrid(name, table, kind, down, across) {
  const frame = document.getElementById(`f-${name}`);
  if (!frame) return;
  if (!table) { frame.remove(); return; }
  const made = figure(name, drawGrid(table, kind, down, across));
  made.plot.before(make(null, 'h3', {}, made.label));
  asNumbers(made, [down, ...table.columns], () => table.rows.map((row, i) => [row, ...table.values[i]]));
}
