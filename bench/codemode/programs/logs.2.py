import json, re
from collections import Counter
all, failed, days = Counter(), Counter(), Counter()
for name in re.findall(r"^\[FILE\] (.+)$", tools.files.list_directory(path="logs")["content"], re.M):
    for line in tools.files.read_text_file(path="logs/" + name)["content"].splitlines():
        time, _, _, path, status, _ = line.split()
        route = re.sub(r"\d+", ":id", path)
        all[route] += 1
        if status >= "500":
            failed[route] += 1
            days[time[:10]] += 1
worst = sorted(failed, key=lambda r: -failed[r] / all[r])[:3]
print(json.dumps({"worst": [[r, failed[r], all[r]] for r in worst], "day": days.most_common(1)[0]}))
