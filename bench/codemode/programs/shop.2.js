const found = [];
for (let page = 1, pages = 1; page <= pages; page++) {
  await tools.browser.browser_navigate({url: `SITE/shop?page=${page}`});
  const text = await tools.browser.browser_snapshot({});
  pages = +text.match(/Page \d+ of (\d+)/)[1];
  const cells = [...text.matchAll(/cell "?([^"\n]+?)"? \[/g)].map(m => m[1]);
  for (let i = 0; i < cells.length; i += 6) {
    const [sku, name, , price, stock, rating] = cells.slice(i, i + 6);
    if (rating >= 4.5 && stock >= 10 && price < 50) found.push(sku + " " + name);
  }
}
console.log(JSON.stringify(found.sort()));
