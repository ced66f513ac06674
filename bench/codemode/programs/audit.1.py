import re
names = tools.files.list_directory(path="deploy")["content"]
print(names[:100])
print(tools.files.read_text_file(path="deploy/" + re.search(r"\] (.+)", names)[1])["content"])
