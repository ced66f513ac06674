const sum = await tools.everything.get_sum({a: 1742, b: 2500});
console.log(JSON.stringify(await tools.everything.echo({message: sum.match(/is (\d+)/)[1]})));
