/* A recorded step: calls of the other functions, one after the other. */

#include "words.h"

/* Each call is the address of its adapter, the number of its arguments, and these. */
void sglk_replay(const union word *call, size_t calls) {
    for (size_t i = 0; i < calls; i++) {
        ((adapter)call[0].pointer)(call + 2);
        call += 2 + call[1].size;
    }
}
