// Elements, axes and controls of all figures. Text is only set as textContent, never as HTML.
const numbers = JSON.parse(document.getElementById('numbers').textContent);
const SVG = 'http://www.w3.org/2000/svg';
const DASHES = { solid: '', dashed: '7 3', dotted: '1.5 3', dashdot: '8 3 1.5 3' };

function make(parent, tag, attributes = {}, text = null) {
  const drawn = ['svg', 'g', 'path', 'line', 'rect', 'circle', 'text', 'clipPath', 'title'].includes(tag);
  const element = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

const figures = [];

// Draws a figure at the available width, and again when the width changes, so that the font size stays constant.
function figure(name, draw) {
  const frame = document.getElementById(`f-${name}`);
  if (!frame) return null;
  const plot = frame.querySelector('.plot');
  const made = { frame, plot, controls: frame.querySelector('.controls'), label: frame.getAttribute('aria-label') };
  let before = 0;
  made.redraw = () => {
    before = plot.clientWidth;
    if (before > 0) draw(made, Math.max(280, before));
  };
  const look = () => { if (plot.clientWidth !== before) made.redraw(); };
  new ResizeObserver(() => requestAnimationFrame(look)).observe(plot);
  figures.push(made);
  return made;
}

function canvas(made, width, height, label) {
  made.plot.replaceChildren();
  const size = { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label };
  return make(made.plot, 'svg', size);
}

function choice(made, label, options, chosen, changed) {
  const outer = make(made.controls, 'label', {}, `${label} `);
  const select = make(outer, 'select');
  options.forEach(([value, text]) => make(select, 'option', { value }, text));
  select.value = chosen;
  select.addEventListener('change', () => changed(select.value));
}

function button(parent, text, label, pressed) {
  const made = make(parent, 'button', { type: 'button', 'aria-label': label }, text);
  made.addEventListener('click', pressed);
  return made;
}

// About `about` round numbers between low and high.
function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough) ?? 10 * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

function short(value) {
  if (value === null || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e4) return ['', 'k', 'M', 'G', 'T'].reduce((text, unit, i) => (size >= 1000 ** i ? `${+(value / 1000 ** i).toPrecision(3)}${unit}` : text), '');
  return String(+value.toPrecision(size >= 1000 ? 4 : 3));
}

// Three decimals, so that neighbouring values have the same number of digits.
function even(value) {
  return value !== null && Math.abs(value) < 10 ? value.toFixed(3) : short(value);
}

function cut(text, letters) {
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
}

// The figure's numbers as a table, for screen readers and for copying.
function asNumbers(made, headings, rows) {
  made.frame.querySelector('details')?.remove();
  const details = make(made.frame, 'details');
  make(details, 'summary', {}, 'show numbers');
  details.addEventListener('toggle', () => {
    if (!details.open || details.querySelector('table')) return;
    const table = make(make(details, 'div', { class: 'wide', tabindex: 0 }), 'table');
    const head = make(make(table, 'thead'), 'tr');
    headings.forEach((text) => make(head, 'th', { scope: 'col' }, text));
    const inside = make(table, 'tbody');
    rows().forEach((row) => {
      const line = make(inside, 'tr');
      row.forEach((cell, i) => make(line, i ? 'td' : 'th', i ? {} : { scope: 'row' }, typeof cell === 'string' ? cell : short(cell)));
    });
  });
}
