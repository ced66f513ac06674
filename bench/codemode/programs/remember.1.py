import json
name = tools.memory.search_nodes(query="Rotterdam")["entities"][0]["name"]
r = tools.memory.add_observations(observations=[{"entityName": name, "contents": ["moved to the harbour in 2026"]}])
print(json.dumps({"entity": name, "added": len(r["results"][0]["addedObservations"])}))
