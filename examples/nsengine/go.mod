module example.com/nsengine

go 1.26.3

require github.com/glovebox-dev/glovebox v0.0.0

require golang.org/x/sys v0.49.0 // indirect

replace github.com/glovebox-dev/glovebox => ../..
