// Polls for new numbers and redraws the figures; zoom and selections stay.
const live = JSON.parse(document.getElementById('live').textContent);
const EVERY = 2000;

function sameShape(fresh) {
  const shape = (of) => JSON.stringify([of.methods.map(({ name }) => name), of.metrics.map(({ name }) => name), ['heard', 'own'].map((table) => Boolean(of[table]))]);
  return shape(fresh) === shape(numbers);
}

function redraw(fresh) {
  ['heard', 'own'].forEach((table) => { if (fresh[table]) fresh[table] = Object.assign(numbers[table], fresh[table]); });
  Object.assign(numbers, fresh);
  figures.forEach((made) => made.redraw());
}

async function refresh() {
  const heard = document.getElementById('heard'), standing = document.getElementById('standing');
  try {
    const answer = await fetch(`${live.url}&after=${live.stamp}`);
    if (answer.status === 200) {
      const update = await answer.json();
      if (update.ended || !sameShape(update.numbers)) return location.reload();
      live.stamp = update.stamp;
      redraw(update.numbers);
      if (update.standing) standing.textContent = `${Math.round(update.standing.share * 100)}%, ${update.standing.state}`;
      document.documentElement.dataset.refreshed = live.stamp;
    }
    heard.textContent = '';
  } catch {
    heard.textContent = 'The dashboard no longer responds.';
  }
  setTimeout(refresh, EVERY);
}

if (live.going) setTimeout(refresh, EVERY);
