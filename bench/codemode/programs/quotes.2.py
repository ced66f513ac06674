import json, re
rows = tools.sql.execute_sql(sql="SELECT sku, price_cents FROM products")["data"]["statements"][0]["rows"]
ours = {r["sku"]: r["price_cents"] for r in rows}
changed, page, pages = [], 1, 1
while page <= pages:
    tools.browser.browser_navigate(url=f"SITE/supplier?page={page}")
    text = tools.browser.browser_snapshot()
    pages = int(re.search(r"Page \d+ of (\d+)", text)[1])
    cells = re.findall(r'cell "?([^"\n]+?)"? \[', text)
    for sku, price, _ in zip(*[iter(cells)] * 3):
        before, now = ours.pop(sku), round(float(price) * 100)
        if before != now:
            changed.append([sku, before, now])
    page += 1
print(json.dumps({"missing": sorted(ours), "changed": sorted(changed)}))
