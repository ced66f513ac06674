await tools.files.list_directory({path: "notes"});
await tools.memory.search_nodes({query: "Rotterdam"});
await tools.everything.echo({message: "hello"});
await tools.sql.execute_sql({sql: "SELECT 1"});
await tools.browser.browser_navigate({url: "about:blank"});
