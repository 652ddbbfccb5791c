// Tables of checkpoints: a field that filters the rows by words, menus, headings that sort, and a figure of the rows.
for (const box of document.querySelectorAll(".filterable")) {
  const body = box.querySelector("tbody"), heads = [...box.querySelectorAll("th")], rows = [...body.rows];
  const read = (name) => JSON.parse(box.dataset[name] ?? "null");
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const bar = document.createElement("div"), field = document.createElement("input"), count = document.createElement("span");
  bar.className = "table-filter";
  field.type = "search";
  field.placeholder = "Filter, such as: dinov2 224";
  field.setAttribute("aria-label", `Filter the ${box.dataset.label}`);
  count.setAttribute("role", "status");
  const column = (name) => heads.findIndex((head) => head.textContent === name);
  const menus = (read("choose") ?? []).map(([name, ...limits]) => menu(name, limits));
  bar.append(field, ...menus.map((each) => each.node), count);
  box.before(bar);
  const plot = read("plot") && scatter(...read("plot"));

  // A menu of a column: its values, or limits that its numbers must not exceed.
  function menu(name, limits) {
    const node = document.createElement("select"), place = column(name);
    const values = limits.length ? limits : [...new Set(rows.map((row) => value(row, place)))].filter((v) => v !== "");
    values.sort((a, b) => (typeof a === "number" ? a - b : a.localeCompare(b)));
    node.setAttribute("aria-label", name);
    node.append(new Option(`any ${name}`, ""), ...values.map((v) => new Option(limits.length ? `≤ ${v} ${name}` : `${v}`, v)));
    node.addEventListener("change", filter);
    const fits = (row) => {
      const found = value(row, place);
      return node.value === "" || (limits.length ? found !== "" && found <= Number(node.value) : String(found) === node.value);
    };
    return { node, fits };
  }

  function filter() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(words.every((word) => texts.get(row).includes(word)) && menus.every((each) => each.fits(row)));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} ${box.dataset.label}`;
    plot?.();
  }

  // Numbers with a unit are compared in bytes, numbers with a ~ as they are; empty cells come last.
  function value(row, place) {
    const text = row.cells[place].textContent.trim();
    const found = /^~?([\d.]+(?:e-?\d+)?)\s*(kB|MB|GB)?$/.exec(text);
    return found ? Number(found[1]) * ({ kB: 1e3, MB: 1e6, GB: 1e9 }[found[2]] ?? 1) : text;
  }

  function sort(head, downward) {
    const place = head.cellIndex, down = downward ?? head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    rows.sort((a, b) => {
      const x = value(a, place), y = value(b, place);
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    });
    body.append(...rows);
  }

  // A figure of two columns of the rows that are shown, across on a logarithmic scale, and a button for another column.
  function scatter(up, ...across) {
    const SVG = "http://www.w3.org/2000/svg", W = 720, H = 380, LEFT = 44, RIGHT = 12, TOP = 12, BOTTOM = 44;
    const make = (tag, at, text) => {
      const node = document.createElementNS(SVG, tag);
      for (const [name, v] of Object.entries(at)) node.setAttribute(name, v);
      if (text !== undefined) node.textContent = text;
      return node;
    };
    const figure = document.createElement("figure"), svg = make("svg", { viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "img" });
    const said = document.createElement("figcaption"), axis = document.createElement("button");
    figure.className = "table-plot";
    axis.type = "button";
    said.setAttribute("role", "status");
    figure.append(svg, said, axis);
    bar.after(figure);
    const y = column(up), noncommercial = (row) => row.textContent.includes("CC-BY-NC");
    let chosen = 0, points = [], current = -1;

    function draw() {
      const name = across[chosen], x = column(name);
      const all = rows.filter((row) => value(row, y) !== "" && value(row, x) !== "");
      const xs = all.map((row) => Math.log10(value(row, x))), ys = all.map((row) => value(row, y));
      const [x0, x1] = [Math.min(...xs) - 0.05, Math.max(...xs) + 0.05], [y0, y1] = [Math.min(...ys) - 1, Math.max(...ys) + 1];
      const px = (v) => LEFT + ((v - x0) / (x1 - x0)) * (W - LEFT - RIGHT), py = (v) => H - BOTTOM - ((v - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
      svg.replaceChildren();
      svg.setAttribute("aria-label", `${up} against ${name} of the models shown`);
      for (const t of [1, 3, 10, 30, 100, 300, 1000, 3000].filter((v) => Math.log10(v) > x0 && Math.log10(v) < x1)) {
        svg.append(make("path", { d: `M${px(Math.log10(t))} ${TOP}V${H - BOTTOM}`, class: "grid" }));
        svg.append(make("text", { x: px(Math.log10(t)), y: H - BOTTOM + 17, "text-anchor": "middle" }, t));
      }
      for (let t = Math.ceil(y0 / 5) * 5; t < y1; t += 5) {
        svg.append(make("path", { d: `M${LEFT} ${py(t)}H${W - RIGHT}`, class: "grid" }));
        svg.append(make("text", { x: LEFT - 6, y: py(t) + 4, "text-anchor": "end" }, t));
      }
      svg.append(make("text", { x: LEFT, y: H - 6 }, `${name} (logarithmic) →   ↑ ${up} in %   ○ not for commercial use`));
      points = all.filter((row) => !row.hidden).map((row) => ({ row, x: px(Math.log10(value(row, x))), y: py(value(row, y)) }));
      points.sort((a, b) => a.x - b.x);
      for (const point of points) {
        point.node = make("circle", { cx: point.x, cy: point.y, r: 5, class: noncommercial(point.row) ? "hollow" : "" });
        svg.append(point.node);
      }
      current = -1;
      said.textContent = `${points.length} of the models shown have a published ${up}. Point at one.`;
      axis.textContent = `Show ${across[(chosen + 1) % across.length]} across`;
    }

    function point(index) {
      points[current]?.node.classList.remove("pointed");
      current = index;
      const { row, node } = points[index];
      node.classList.add("pointed");
      svg.append(node); // on top of the others
      const cell = (name) => row.cells[column(name)].textContent;
      said.textContent = `${cell("name")}: ${cell(up)} %, ${cell("MB")} MB, ${cell("GMAC")} GMAC, ${cell("px")} px, ${cell("license")}`;
    }

    function nearest(event) {
      const at = svg.createSVGPoint();
      [at.x, at.y] = [event.clientX, event.clientY];
      const { x, y } = at.matrixTransform(svg.getScreenCTM().inverse());
      const distance = (p) => (p.x - x) ** 2 + (p.y - y) ** 2;
      return points.reduce((best, p, index) => (best < 0 || distance(p) < distance(points[best]) ? index : best), -1);
    }

    function show() {
      if (current < 0) return;
      for (const row of rows) row.classList.remove("pointed");
      points[current].row.classList.add("pointed");
      points[current].row.scrollIntoView({ block: "center", behavior: "smooth" });
    }

    svg.addEventListener("pointermove", (event) => points.length && point(nearest(event)));
    svg.addEventListener("click", (event) => { if (points.length) { point(nearest(event)); if (event.detail !== 0 && event.pointerType !== "touch") show(); } });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step && points.length) { event.preventDefault(); point(Math.min(points.length - 1, Math.max(0, current + step))); }
      if (event.key === "Enter") show();
    });
    axis.addEventListener("click", () => { chosen = (chosen + 1) % across.length; draw(); });
    return draw;
  }

  for (const head of heads) {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
  }
  field.addEventListener("input", filter);
  if (read("sort")) sort(heads[column(read("sort"))], true);
  filter();
}
