import json, re
sum = tools.everything.get_sum(a=1742, b=2500)
print(json.dumps(tools.everything.echo(message=re.search(r"is (\d+)", sum)[1])))
