const {content} = await tools.files.read_text_file({path: "contracts/hours.csv", head: 3});
const {entities} = await tools.memory.search_nodes({query: "customer"});
const rows = await tools.sql.execute_sql({sql: "SELECT * FROM tickets LIMIT 1"});
console.log(content + "\n" + JSON.stringify([entities[0], rows]));
