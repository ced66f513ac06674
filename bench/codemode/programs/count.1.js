console.log(JSON.stringify(await tools.sql.search_objects({object_type: "column", schema: "main", table: "products"})));
