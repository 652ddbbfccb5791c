// Tables of checkpoints: a field that filters the rows by words, and headings that sort them.
for (const box of document.querySelectorAll(".filterable")) {
  const body = box.querySelector("tbody"), rows = [...body.rows];
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const bar = document.createElement("div"), field = document.createElement("input"), count = document.createElement("span");
  bar.className = "table-filter";
  field.type = "search";
  field.placeholder = "Filter, such as: dinov2 224";
  field.setAttribute("aria-label", `Filter the ${box.dataset.label}`);
  count.setAttribute("role", "status");
  bar.append(field, count);
  box.before(bar);

  function filter() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => texts.get(row).includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} ${box.dataset.label}`;
  }

  // Numbers with a unit are compared in bytes; empty cells come last.
  function value(row, column) {
    const text = row.cells[column].textContent.trim();
    const found = /^([\d.]+(?:e-?\d+)?)\s*(kB|MB|GB)?$/.exec(text);
    return found ? Number(found[1]) * ({ kB: 1e3, MB: 1e6, GB: 1e9 }[found[2]] ?? 1) : text;
  }

  function sort(head) {
    const column = head.cellIndex, down = head.getAttribute("aria-sort") === "ascending";
    for (const other of box.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    rows.sort((a, b) => {
      const x = value(a, column), y = value(b, column);
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    });
    body.append(...rows);
  }

  for (const head of box.querySelectorAll("th")) {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
  }
  field.addEventListener("input", filter);
  filter();
}
