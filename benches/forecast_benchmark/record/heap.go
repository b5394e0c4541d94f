// A garbage-collected heap: short-lived objects, and a leak if asked for.
// usage: heap LEAK_KB_PER_SECOND SHORT_LIVED_MB_PER_SECOND
package main

import (
	"os"
	"strconv"
	"time"
)

var (
	kept  [][]byte
	short []byte
)

func main() {
	leak, _ := strconv.Atoi(os.Args[1])
	churn, _ := strconv.Atoi(os.Args[2])
	for range time.Tick(100 * time.Millisecond) {
		for i := 0; i < churn; i++ {
			short = make([]byte, 100<<10)
			for place := 0; place < len(short); place += 4096 {
				short[place] = 1
			}
		}
		if leak > 0 {
			block := make([]byte, leak<<10/10)
			for place := range block {
				block[place] = 1
			}
			kept = append(kept, block)
		}
	}
}
