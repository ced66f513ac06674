import json
from collections import defaultdict
g = tools.memory.search_nodes(query="service")
users = defaultdict(list)
for r in g["relations"]:
    users[r["to"]].append(r["from"])
hit, todo = set(), [next(e["name"] for e in g["entities"] if e["name"].endswith("-003"))]
while todo:
    new = set(users[todo.pop()]) - hit
    hit |= new
    todo += new
tiers, ownerless = [0, 0, 0], []
for e in g["entities"]:
    if e["name"] in hit:
        tier = next(o for o in e["observations"] if o.startswith("tier "))
        tiers[int(tier[5:]) - 1] += 1
        if not any(o.startswith("owned by ") for o in e["observations"]):
            ownerless.append(e["name"])
print(json.dumps({"tiers": tiers, "ownerless": sorted(ownerless)}))
