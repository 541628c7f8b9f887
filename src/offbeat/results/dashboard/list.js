// Reloads the list every two seconds and keeps the selection.
const box = (name) => [...document.querySelectorAll('input[name=of]')].find((input) => input.value === name);

async function look() {
  const heard = document.getElementById('heard');
  try {
    const answer = await fetch('/');
    const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('list');
    const old = document.getElementById('list');
    if (fresh && fresh.innerHTML !== shown) {
      shown = fresh.innerHTML;
      const chosen = [...document.querySelectorAll('input[name=of]:checked')].map((input) => input.value);
      const focused = document.activeElement?.value, left = document.querySelector('.wide')?.scrollLeft ?? 0;
      old.replaceWith(document.importNode(fresh, true));
      chosen.forEach((name) => { if (box(name)) box(name).checked = true; });
      if (focused) box(focused)?.focus();
      if (left) document.querySelector('.wide').scrollLeft = left;
      document.documentElement.dataset.refreshed = 'yes';
    }
    heard.textContent = '';
  } catch {
    heard.textContent = 'The dashboard no longer responds.';
  }
  setTimeout(look, 2000);
}

let shown = document.getElementById('list').innerHTML;
setTimeout(look, 2000);
document.documentElement.dataset.drawn = 'yes';
