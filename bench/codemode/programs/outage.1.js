const {entities, relations} = await tools.memory.search_nodes({query: "service"});
console.log(JSON.stringify([entities.length, entities.slice(0, 4), relations.length, relations[0]]));
