// Asks now and then whether there is something new, and draws it where it stands; zoom and choices stay.
const live = JSON.parse(document.getElementById('live').textContent);
const EVERY = 2000;

function sameShape(fresh) {
  const shape = (of) => JSON.stringify([of.methods.map(({ name }) => name), of.metrics.map(({ name }) => name), ['heard', 'own'].map((table) => Boolean(of[table]))]);
  return shape(fresh) === shape(numbers);
}

function redrawn(fresh) {
  ['heard', 'own'].forEach((table) => { if (fresh[table]) fresh[table] = Object.assign(numbers[table], fresh[table]); });
  Object.assign(numbers, fresh);
  figures.forEach((made) => made.redraw());
}

async function refresh() {
  const heard = document.getElementById('heard'), standing = document.getElementById('standing');
  try {
    const answer = await fetch(`${live.url}&after=${live.stamp}`);
    if (answer.status === 200) {
      const told = await answer.json();
      if (told.ended || !sameShape(told.numbers)) return location.reload();
      live.stamp = told.stamp;
      redrawn(told.numbers);
      if (told.standing) standing.textContent = `${Math.round(told.standing.share * 100)}%, ${told.standing.state}`;
      document.documentElement.dataset.refreshed = live.stamp;
    }
    heard.textContent = '';
  } catch {
    heard.textContent = 'The dashboard does not answer any more.';
  }
  setTimeout(refresh, EVERY);
}

if (live.going) setTimeout(refresh, EVERY);
