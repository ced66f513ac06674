import json, re
found, page, pages = [], 1, 1
while page <= pages:
    tools.browser.browser_navigate(url=f"SITE/shop?page={page}")
    text = tools.browser.browser_snapshot()
    pages = int(re.search(r"Page \d+ of (\d+)", text)[1])
    cells = re.findall(r'cell "?([^"\n]+?)"? \[', text)
    for sku, name, _, price, stock, rating in zip(*[iter(cells)] * 6):
        if float(rating) >= 4.5 and int(stock) >= 10 and float(price) < 50:
            found.append(sku + " " + name)
    page += 1
print(json.dumps(sorted(found)))
