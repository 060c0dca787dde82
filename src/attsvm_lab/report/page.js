"use strict";
if (matchMedia("(max-width: 64rem)").matches) document.querySelector("nav details").open = false;

// A link to a folded section unfolds it.
const unfold = () => {
  const folded = location.hash && document.querySelector(`${location.hash} > details`);
  if (folded) folded.open = true;
};
addEventListener("hashchange", unfold);
unfold();

// Numbers sort as numbers: the first number of a cell, its tolerance and words left out.
const value = (row, column) => {
  const text = row.cells[column].firstChild.textContent.trim();
  const number = Number(text.split(" ")[0].replaceAll("−", "-"));
  return text === "" || Number.isNaN(number) ? text.toLowerCase() : number;
};
const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);

for (const table of document.querySelectorAll(".sortable table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const rows = [...table.tBodies[0].rows].sort((a, b) => compare(value(a, column), value(b, column)));
      table.tBodies[0].append(...(order === "ascending" ? rows : rows.reverse()));
    });
  });
}

const filter = document.getElementById("filter");
const rows = [...document.querySelectorAll("#summary tbody tr")];
const apply = () => {
  const words = filter.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = [...filter.querySelectorAll("select")].filter((choice) => choice.value);
  const marks = chosen.map((choice) => `.${choice.dataset.mark}.${choice.value}`);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits = words.every((word) => text.includes(word)) && marks.every((mark) => row.querySelector(mark));
    row.hidden = !fits;
    shown += fits ? 1 : 0;
  }
  document.getElementById("shown").textContent = `${shown} of ${rows.length}`;
};
filter.hidden = false;
filter.addEventListener("input", apply);
filter.addEventListener("submit", (event) => event.preventDefault());
apply();
