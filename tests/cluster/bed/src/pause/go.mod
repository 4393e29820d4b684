module pilotlight.dev/bed/pause

go 1.25.0
