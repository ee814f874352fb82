// Records whose content their number and version give, replaced and compared by four goroutines
// while the collector works: records RECORDS ROUNDS, prints "OK checksum".
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

const workers = 4

func random(x int64) int64 { return x * 48271 % 2147483647 }

func content(i, version int) string {
	x := random(int64(i)*31 + int64(version)*7919 + 1)
	words := ""
	for n := 0; n < 6; n++ {
		x = random(x)
		words += strconv.FormatInt(x, 16) + " "
	}
	return fmt.Sprintf("record %d version %d ", i, version) + strings.Repeat(words, 8)
}

type record struct {
	text  string
	raw   []byte
	index map[string]int
}

func build(i, version int) *record {
	text := content(i, version)
	return &record{text, []byte(text), map[string]int{"i": i, "version": version}}
}

func work(records, rounds int) (sum int64) {
	all := make([]*record, records)
	versions := make([]int, records)
	for i := range all {
		all[i] = build(i, 0)
	}
	for round := 0; round < rounds; round++ {
		time.Sleep(500 * time.Millisecond)
		for i, r := range all {
			want := content(i, versions[i])
			if r.text != want || !bytes.Equal(r.raw, []byte(want)) ||
				r.index["i"] != i || r.index["version"] != versions[i] {
				fmt.Printf("BAD record %d in round %d\n", i, round)
				os.Exit(1)
			}
			sum = (sum*31 + int64(len(want)) + int64(want[30])) % 2147483647
			if i%3 == round%3 {
				versions[i]++
				all[i] = build(i, versions[i])
			}
		}
		runtime.GC()
	}
	return sum
}

func main() {
	records, _ := strconv.Atoi(os.Args[1])
	rounds, _ := strconv.Atoi(os.Args[2])
	prepare()
	sums := make([]int64, workers)
	var all sync.WaitGroup
	for n := range sums {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			sums[n] = work(records, rounds)
		}(n)
	}
	all.Wait()
	sum := int64(0)
	for _, one := range sums {
		sum = sum*7 + one
	}
	verify()
	fmt.Println("OK", sum)
}
