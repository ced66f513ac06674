const {content} = await tools.files.read_text_file({path: "bank/payments.csv"});
const {data} = await tools.sql.execute_sql({sql: "SELECT id, amount_cents FROM invoices"});
const open = new Map(data.statements[0].rows.map(r => [r.id, r.amount_cents]));
const unknown = [], differ = [];
for (const line of content.trim().split("\n").slice(1)) {
  const [, ref, cents] = line.split(",");
  if (!open.has(ref)) { unknown.push(ref); continue; }
  if (open.get(ref) !== +cents) differ.push([ref, open.get(ref), +cents]);
  open.delete(ref);
}
console.log(JSON.stringify({unpaid: [...open.keys()].sort(), unknown: unknown.sort(), differ: differ.sort()}));
