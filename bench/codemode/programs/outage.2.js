const {entities, relations} = await tools.memory.search_nodes({query: "service"});
const down = entities.find(e => /-003$/.test(e.name)).name;
const users = {};
for (const r of relations) (users[r.to] ??= []).push(r.from);
const hit = new Set(), todo = [down];
while (todo.length) for (const s of users[todo.pop()] ?? []) if (!hit.has(s)) { hit.add(s); todo.push(s); }
const tiers = [0, 0, 0], ownerless = [];
for (const e of entities.filter(e => hit.has(e.name))) {
  tiers[e.observations.find(o => o.startsWith("tier ")).slice(5) - 1]++;
  if (!e.observations.some(o => o.startsWith("owned by "))) ownerless.push(e.name);
}
console.log(JSON.stringify({tiers, ownerless: ownerless.sort()}));
