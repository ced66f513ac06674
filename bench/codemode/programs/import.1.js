const {content} = await tools.files.read_text_file({path: "contacts.csv", head: 3});
console.log(content);
