import csv, json
from collections import Counter
rows = tools.sql.execute_sql(sql="SELECT customer, SUM(hours) AS hours FROM tickets GROUP BY customer")["data"]["statements"][0]["rows"]
hours = {r["customer"]: r["hours"] for r in rows}
known = {e["name"]: e["observations"] for e in tools.memory.search_nodes(query="customer")["entities"]}
plans, costs = Counter(), []
for c in csv.DictReader(tools.files.read_text_file(path="contracts/hours.csv")["content"].splitlines()):
    name = c["customer"]
    plan, manager = known[name]
    cost = max(0, hours.get(name, 0) - int(c["included_hours"])) * int(c["rate_per_hour"])
    plans[plan.removeprefix("plan ")] += cost
    costs.append([name, manager.removeprefix("account of "), cost])
costs.sort(key=lambda c: (-c[2], c[0]))
print(json.dumps({"plans": plans, "top": costs[:5]}))
