print(tools.files.read_text_file(path="bank/payments.csv", head=3)["content"])
print(tools.sql.execute_sql(sql="SELECT * FROM invoices LIMIT 1"))
