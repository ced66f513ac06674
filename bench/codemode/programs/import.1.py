print(tools.files.read_text_file(path="contacts.csv", head=3)["content"])
