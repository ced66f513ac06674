import json
print(json.dumps(tools.sql.execute_sql(sql="SELECT COUNT(*) AS n FROM products WHERE stock = 0")["data"]["statements"][0]["rows"][0]["n"]))
