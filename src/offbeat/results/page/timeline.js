// Client activity over the whole run, one lane per client. Each layer has a string of digits per lane.
const timeline = { method: 0 };

// One path per digit: all bins of a layer with this digit; neighbouring bins become one rectangle.
function cells(rows, x, y, tall) {
  const paths = Array.from({ length: 10 }, () => '');
  rows.forEach((row, lane) => {
    for (let from = 0; from < row.length;) {
      let to = from + 1;
      while (row[to] === row[from]) to += 1;
      if (row[from] !== '0') paths[+row[from]] += `M${x(from).toFixed(1)} ${y(lane).toFixed(1)}H${x(to).toFixed(1)}v${tall.toFixed(1)}H${x(from).toFixed(1)}z`;
      from = to;
    }
  });
  return paths;
}

function drawTimeline(made, width) {
  const lanes = numbers.methods[timeline.method].lanes, count = lanes.clients.length;
  const bins = lanes.work?.[0].length ?? lanes.away?.[0].length ?? 1;
  const each = Math.max(4, Math.min(16, 480 / count)), gap = each >= 6 ? 1.5 : 0.5, named = each >= 11;
  const letters = width < 500 ? 8 : 16;
  const longest = Math.max(...lanes.clients.map((name) => Math.min(letters, name.length)));
  const left = named ? 16 + 7 * longest : 20, right = width - 14, bottom = count * each + 4;
  const x = (bin) => left + bin / bins * (right - left), y = (lane) => 4 + lane * each;
  const svg = canvas(made, width, bottom + 40, `${numbers.methods[timeline.method].name}: client activity`);
  make(svg, 'rect', { class: 'paper', x: left, y: 4, width: right - left, height: bottom - 4 });
  const tall = each - gap;
  Object.entries({ work: 'work', arrived: 'arrived', away: 'away', failed: 'failed' }).forEach(([layer, look]) => {
    if (!lanes[layer]) return;
    const group = make(svg, 'g', { class: look, style: `--c:var(--m${timeline.method})` });
    const [down, high] = { failed: [tall / 2, tall / 2], away: [tall / 3, tall / 3] }[layer] ?? [0, tall]; // distinguishable without colour
    cells(lanes[layer], x, (lane) => y(lane) + down, high).forEach((d, digit) => {
      const strength = layer === 'work' || layer === 'away' ? digit / 9 : 1;
      if (d) make(group, 'path', { d, 'fill-opacity': strength.toFixed(2) });
    });
  });
  if (named) lanes.clients.forEach((name, lane) => make(svg, 'text', { class: 'small', x: left - 6, y: y(lane) + each / 2 + 3, 'text-anchor': 'end' }, cut(name, letters)));
  else make(svg, 'text', { x: 12, y: bottom / 2, 'text-anchor': 'middle', transform: `rotate(-90 12 ${bottom / 2})` }, `${count} of ${numbers.clients} clients`);
  ticks(0, lanes.end || 1, (right - left) / 90).forEach((value) => {
    const at = left + value / (lanes.end || 1) * (right - left);
    make(svg, 'line', { class: 'tick', x1: at, x2: at, y1: bottom, y2: bottom + 4 });
    make(svg, 'text', { x: at, y: bottom + 17, 'text-anchor': 'middle' }, short(value));
  });
  make(svg, 'text', { x: (left + right) / 2, y: bottom + 34, 'text-anchor': 'middle' }, numbers.clock);
  const hint = make(svg, 'title');
  svg.addEventListener('pointermove', (event) => {
    const lane = Math.floor((event.offsetY - 4) / each), bin = Math.floor((event.offsetX - left) / (right - left) * bins);
    const known = lanes.clients[lane] !== undefined && bin >= 0 && bin < bins;
    hint.textContent = known ? `client ${lanes.clients[lane]}, about ${short((bin + 0.5) / bins * lanes.end)} s: ${describeBin(lanes, lane, bin)}` : '';
  });
}

function describeBin(lanes, lane, bin) {
  const digit = (layer) => +(lanes[layer]?.[lane][bin] ?? 0);
  const parts = [];
  if (digit('work')) parts.push('at work');
  if (digit('away')) parts.push('away');
  if (digit('arrived')) parts.push(`${digit('arrived')} arrived`);
  if (digit('failed')) parts.push(`${digit('failed')} failed`);
  return parts.join(', ') || 'waiting';
}

function startTimeline() {
  const made = figure('timeline', drawTimeline);
  if (!made) return;
  const key = made.frame.previousElementSibling;
  const choose = (value) => { timeline.method = +value; key.style.setProperty('--c', `var(--m${value})`); };
  choose(0);
  if (numbers.methods.length > 1) choice(made, 'method', numbers.methods.map(({ name }, i) => [String(i), name]), '0', (value) => { choose(value); made.redraw(); });
  asNumbers(made, ['client', ...numbers.methods.map(({ name }) => `${name}: at work`)], () => {
    const share = (row) => (row ? `${Math.round([...row].reduce((sum, digit) => sum + +digit, 0) / row.length / 9 * 100)} %` : '–');
    const whose = numbers.methods.map(({ lanes }) => lanes).reduce((a, b) => (b.clients.length > a.clients.length ? b : a));
    return whose.clients.map((name) => [name, ...numbers.methods.map(({ lanes }) => share(lanes.work?.[lanes.clients.indexOf(name)]))]);
  });
}
