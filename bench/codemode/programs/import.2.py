import csv, json
contacts = list(csv.DictReader(tools.files.read_text_file(path="contacts.csv")["content"].splitlines()))
companies = list(dict.fromkeys(c["company"] for c in contacts))
tools.memory.create_entities(entities=[
    {"name": c["name"], "entityType": "contact", "observations": [f"{k} {c[k]}" for k in ("email", "city", "role")]} for c in contacts
] + [{"name": n, "entityType": "company", "observations": []} for n in companies])
made = tools.memory.create_relations(relations=[{"from": c["name"], "to": c["company"], "relationType": "works_at"} for c in contacts])
print(json.dumps({"contacts": len(contacts), "companies": len(companies), "relations": len(made["relations"])}))
