print(tools.files.read_text_file(path="contracts/hours.csv", head=3)["content"])
print(tools.memory.search_nodes(query="customer")["entities"][0])
print(tools.sql.execute_sql(sql="SELECT * FROM tickets LIMIT 1"))
