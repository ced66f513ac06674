const {data} = await tools.sql.execute_sql({sql: "SELECT sku, price_cents FROM products"});
const ours = new Map(data.statements[0].rows.map(r => [r.sku, r.price_cents]));
const changed = [];
for (let page = 1, pages = 1; page <= pages; page++) {
  await tools.browser.browser_navigate({url: `SITE/supplier?page=${page}`});
  const text = await tools.browser.browser_snapshot({});
  pages = +text.match(/Page \d+ of (\d+)/)[1];
  const cells = [...text.matchAll(/cell "?([^"\n]+?)"? \[/g)].map(m => m[1]);
  for (let i = 0; i < cells.length; i += 3) {
    const sku = cells[i], cents = Math.round(cells[i + 1] * 100);
    if (ours.get(sku) !== cents) changed.push([sku, ours.get(sku), cents]);
    ours.delete(sku);
  }
}
console.log(JSON.stringify({missing: [...ours.keys()].sort(), changed: changed.sort()}));
