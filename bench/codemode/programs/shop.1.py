tools.browser.browser_navigate(url="SITE/shop?page=1")
print(tools.browser.browser_snapshot()[:1200])
