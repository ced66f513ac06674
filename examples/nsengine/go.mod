module example.com/nsengine

go 1.26.3

require github.com/glovebox-dev/glovebox v0.0.0

replace github.com/glovebox-dev/glovebox => ../..
