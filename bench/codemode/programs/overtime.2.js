const [{content}, {entities}, {data}] = await Promise.all([
  tools.files.read_text_file({path: "contracts/hours.csv"}),
  tools.memory.search_nodes({query: "customer"}),
  tools.sql.execute_sql({sql: "SELECT customer, SUM(hours) AS hours FROM tickets GROUP BY customer"}),
]);
const hours = new Map(data.statements[0].rows.map(r => [r.customer, r.hours]));
const known = new Map(entities.map(e => [e.name, e.observations]));
const plans = {}, costs = [];
for (const line of content.trim().split("\n").slice(1)) {
  const [name, included, rate] = line.split(",");
  const [plan, manager] = known.get(name);
  const cost = Math.max(0, (hours.get(name) ?? 0) - included) * rate;
  plans[plan.slice(5)] = (plans[plan.slice(5)] ?? 0) + cost;
  costs.push([name, manager.replace("account of ", ""), cost]);
}
costs.sort((a, b) => b[2] - a[2] || (a[0] < b[0] ? -1 : 1));
console.log(JSON.stringify({plans, top: costs.slice(0, 5)}));
