import json, re
from concurrent.futures import ThreadPoolExecutor
names = re.findall(r"^\[FILE\] (.+)$", tools.files.list_directory(path="deploy")["content"], re.M)
with ThreadPoolExecutor(16) as pool:
    texts = list(pool.map(lambda n: tools.files.read_text_file(path="deploy/" + n)["content"], names))
report = {}
for m in map(json.loads, texts):
    broken = [rule for rule, bad in {
        "latest": m["image"].endswith(":latest"),
        "replicas": m["replicas"] < 2,
        "probe": "readinessProbe" not in m,
        "root": not m["securityContext"]["runAsNonRoot"],
    }.items() if bad]
    if broken:
        report[m["service"]] = broken
tools.files.write_file(path="reports/audit.json", content=json.dumps(report))
print(json.dumps({"services": len(report), "violations": sum(map(len, report.values()))}))
