import csv, json
rows = tools.sql.execute_sql(sql="SELECT id, amount_cents FROM invoices")["data"]["statements"][0]["rows"]
open_ = {r["id"]: r["amount_cents"] for r in rows}
unknown, differ = [], []
for p in csv.DictReader(tools.files.read_text_file(path="bank/payments.csv")["content"].splitlines()):
    ref, cents = p["reference"], int(p["amount_cents"])
    if ref not in open_:
        unknown.append(ref)
        continue
    invoiced = open_.pop(ref)
    if invoiced != cents:
        differ.append([ref, invoiced, cents])
print(json.dumps({"unpaid": sorted(open_), "unknown": sorted(unknown), "differ": sorted(differ)}))
