tools.browser.browser_navigate(url="SITE/supplier?page=1")
print(tools.browser.browser_snapshot()[:900])
print(tools.sql.execute_sql(sql="SELECT * FROM products LIMIT 1"))
