const {entities: [{name}]} = await tools.memory.search_nodes({query: "Rotterdam"});
const {results} = await tools.memory.add_observations({observations: [{entityName: name, contents: ["moved to the harbour in 2026"]}]});
console.log(JSON.stringify({entity: name, added: results[0].addedObservations.length}));
