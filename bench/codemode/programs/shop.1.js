await tools.browser.browser_navigate({url: "SITE/shop?page=1"});
console.log((await tools.browser.browser_snapshot({})).slice(0, 1200));
