// What a script asked for and did not get is said as a page without scripts would say it: the whole page goes where
// a part of it could not; and a queue whose stream is broken tells that it may be old.
"use strict";
for (const trouble of ["htmx:responseError", "htmx:sendError"]) {
  document.addEventListener(trouble, (event) => {
    const asked = event.detail.pathInfo;
    if (asked && event.detail.target && event.detail.target.id === "detail") location.assign(asked.finalRequestPath);
  });
}
for (const [event, hidden] of [["htmx:sseError", false], ["htmx:sseOpen", true]]) {
  document.addEventListener(event, () => {
    const note = document.getElementById("not-live");
    if (note) note.hidden = hidden;
  });
}
