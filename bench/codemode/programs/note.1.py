print(tools.files.list_directory(path="notes")["content"])
