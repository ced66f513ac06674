g = tools.memory.search_nodes(query="service")
print(len(g["entities"]), g["entities"][:4], len(g["relations"]), g["relations"][0])
