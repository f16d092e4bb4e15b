// Buttons that copy the text of another element, or what it stands for where it shows escapes (data-exact);
// without this script the text is there to be selected.
"use strict";
if (navigator.clipboard) {
  for (const button of document.querySelectorAll("button[data-copies]")) button.hidden = false;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copies]");
    const source = button && document.getElementById(button.dataset.copies);
    if (!source) return;
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(source.dataset.exact ?? source.textContent);
      button.textContent = "Copied";
    } catch {
      window.getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
}
