import re
names = tools.files.list_directory(path="logs")["content"]
first = re.search(r"\] (.+)", names)[1]
print(names + "\n" + tools.files.read_text_file(path="logs/" + first, head=3)["content"])
