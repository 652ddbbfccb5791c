// Sphinx's scores, but for the pages: symptoms first, what people read before what programs are made of.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    if (page === "troubleshooting" || page === "cite") return score + 40;
    return /^(source|reference|_modules|tables)\//.test(page) || page === "changes" ? score - 10 : score;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
