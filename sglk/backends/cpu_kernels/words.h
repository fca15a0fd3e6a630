/* Calls as data: what a recorded step is made of. */

#ifndef SGLK_WORDS_H
#define SGLK_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* One argument, whatever its type. */
union word {
    const void *pointer;
    size_t size;
    int64_t number;
    float real;
};

typedef void (*adapter)(const union word *arguments);

#endif
