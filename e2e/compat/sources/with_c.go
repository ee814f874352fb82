//go:build cgo

package main

/*
#include <stdlib.h>
#include <string.h>
static unsigned char *block;
static const size_t size = 16 << 20;
static int make(void) {
    block = malloc(size);
    for (size_t i = 0; block && i < size; i++) block[i] = (unsigned char)(i * 7 + i / 4096);
    return block != NULL;
}
static int same(void) {
    for (size_t i = 0; i < size; i++)
        if (block[i] != (unsigned char)(i * 7 + i / 4096)) return 0;
    free(block);
    return 1;
}
*/
import "C"

import (
	"fmt"
	"os"
)

// Memory of C beside that of Go.
func prepare() {
	if C.make() == 0 {
		os.Exit(2)
	}
}

func verify() {
	if C.same() == 0 {
		fmt.Println("BAD memory of C")
		os.Exit(1)
	}
}
