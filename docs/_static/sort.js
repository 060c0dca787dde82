// Tables in an element of class "sortable": a press on a heading sorts by its column, a second press turns the order.
for (const table of document.querySelectorAll(".sortable table")) {
  const headings = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim(), number = parseFloat(text.replace("−", "-"));
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : +(a > b)) : typeof a === "number" ? -1 : 1);
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const turn = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => turn * compare(value(a, column), value(b, column)));
      table.tBodies[0].append(...rows);
    });
  });
}
