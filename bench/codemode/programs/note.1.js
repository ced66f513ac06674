const {content} = await tools.files.list_directory({path: "notes"});
console.log(content);
