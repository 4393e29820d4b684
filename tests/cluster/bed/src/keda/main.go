// Command keda is KEDA's three programs in one binary: it is the program whose name it is called by.
// building.py copies them here from the module, each as a package with a Main function.
package main

import (
	"log"
	"os"
	"path/filepath"

	"pilotlight.dev/bed/keda/adapter"
	"pilotlight.dev/bed/keda/operator"
	"pilotlight.dev/bed/keda/webhooks"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "keda":
		operator.Main()
	case "keda-adapter":
		adapter.Main()
	case "keda-admission-webhooks":
		webhooks.Main()
	default:
		log.Fatalf("%s: call me as keda, keda-adapter or keda-admission-webhooks", name)
	}
}
