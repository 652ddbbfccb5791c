// Two things that Sphinx's search lacks: numbers such as 384, and excerpts where the site is opened from a folder.
if (typeof Search !== "undefined") {
  const parse = Search._parseQuery;
  Search._parseQuery = (query) => {
    const parsed = parse(query);
    for (const number of query.match(/\b\d+\b/g) ?? []) for (const terms of [parsed[1], parsed[3]]) terms.add(number);
    return parsed;
  };
  if (location.protocol === "file:" && typeof SEARCH_TEXTS !== "undefined") {
    const load = window.fetch;  // a browser does not fetch pages from a folder; search_texts.py has kept their texts
    window.fetch = (address, ...more) => {
      const page = String(address).replace(/^\.\//, "").replace(/\.html$/, "");
      if (!(page in SEARCH_TEXTS)) return page.endsWith(".js") ? load(address, ...more) : Promise.resolve(new Response(""));
      const box = document.createElement("div");
      box.setAttribute("role", "main");
      box.textContent = SEARCH_TEXTS[page];
      return Promise.resolve(new Response(box.outerHTML));
    };
  }
}
