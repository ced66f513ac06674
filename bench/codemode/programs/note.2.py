import json
print(json.dumps(tools.files.read_text_file(path="notes/2026-03-review.md", head=3)["content"].strip().splitlines()[-1]))
