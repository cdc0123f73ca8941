// What scrolls sideways can be reached by the keyboard.
document$.subscribe(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) each.tabIndex = 0;
});
