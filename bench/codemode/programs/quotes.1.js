await tools.browser.browser_navigate({url: "SITE/supplier?page=1"});
const text = await tools.browser.browser_snapshot({});
const rows = await tools.sql.execute_sql({sql: "SELECT * FROM products LIMIT 1"});
console.log(text.slice(0, 900) + "\n" + JSON.stringify(rows));
