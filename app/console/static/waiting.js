// What waits is told in the title, where it is seen from another tab; and a queue that is written anew keeps open
// what was open.
(() => {
  const bare = document.title;
  const tell = () => {
    const badge = document.getElementById("waiting");
    const count = badge ? parseInt(badge.textContent, 10) : 0;
    document.title = count > 0 ? `(${count}) ${bare}` : bare;
  };
  let open = [];
  document.addEventListener("htmx:sseBeforeMessage", () => {
    open = [...document.querySelectorAll("details[open][id]")].map((each) => each.id);
  });
  document.addEventListener("htmx:afterSettle", () => {
    for (const id of open) {
      const found = document.getElementById(id);
      if (found) found.open = true;
    }
    tell();
  });
  document.addEventListener("htmx:oobAfterSwap", tell);
  tell();
  setInterval(() => {
    for (const time of document.querySelectorAll("time.ago")) {
      const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime)) / 1000));
      const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([each]) => seconds >= each) || [1, "s"];
      time.textContent = `${Math.floor(seconds / size)} ${unit} ago`;
    }
  }, 10000);
})();
