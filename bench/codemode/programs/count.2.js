const {data} = await tools.sql.execute_sql({sql: "SELECT COUNT(*) AS n FROM products WHERE stock = 0"});
console.log(JSON.stringify(data.statements[0].rows[0].n));
