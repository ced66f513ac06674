const {content} = await tools.files.read_text_file({path: "bank/payments.csv", head: 3});
const rows = await tools.sql.execute_sql({sql: "SELECT * FROM invoices LIMIT 1"});
console.log(content + "\n" + JSON.stringify(rows));
