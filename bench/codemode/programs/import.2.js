const {content} = await tools.files.read_text_file({path: "contacts.csv"});
const contacts = content.trim().split("\n").slice(1).map(line => line.split(","));
const companies = [...new Set(contacts.map(c => c[2]))];
await tools.memory.create_entities({entities: [
  ...contacts.map(([name, email, , city, role]) => ({name, entityType: "contact", observations: ["email " + email, "city " + city, "role " + role]})),
  ...companies.map(name => ({name, entityType: "company", observations: []})),
]});
const {relations} = await tools.memory.create_relations({relations: contacts.map(c => ({from: c[0], to: c[2], relationType: "works_at"}))});
console.log(JSON.stringify({contacts: contacts.length, companies: companies.length, relations: relations.length}));
