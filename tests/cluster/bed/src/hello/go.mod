module pilotlight.dev/bed/hello

go 1.25.0
