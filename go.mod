module zot

go 1.26
