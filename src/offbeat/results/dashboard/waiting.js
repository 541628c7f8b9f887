// Polls until there is something to draw.
const waiting = JSON.parse(document.getElementById('numbers').textContent);

async function ask() {
  const heard = document.getElementById('heard');
  try {
    const answer = await fetch(`${waiting.url}&after=${waiting.stamp}`);
    if (answer.status === 200) return location.reload();
    heard.textContent = '';
  } catch {
    heard.textContent = 'The dashboard no longer responds.';
  }
  setTimeout(ask, 2000);
}

if (waiting.going) setTimeout(ask, 2000);
document.documentElement.dataset.drawn = 'yes';
