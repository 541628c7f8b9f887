startCurves();
startStaleness();
startTimeline();
startGrid('heard', numbers.heard, 'ratio', 'client', 'method');
startGrid('classes', numbers.classes, 'ratio', 'class', 'method');
startGrid('own', numbers.own, 'metric', 'client', 'method');
startGrid('held', numbers.held, 'amount', 'client', 'class');
figures.forEach((made) => made.redraw());
document.querySelectorAll('section').forEach((section) => { // removes sections whose figures have no data
  if (section.children.length > 1) return;
  document.querySelector(`nav a[href="#${section.id}"]`)?.parentElement.remove();
  section.remove();
});
document.documentElement.dataset.drawn = 'yes';
