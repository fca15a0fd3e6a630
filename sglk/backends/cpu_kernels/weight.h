/* A weight in panels of 16 outputs, and how its numbers become fp32. */

#ifndef SGLK_WEIGHT_H
#define SGLK_WEIGHT_H

#include "wide.h"

#define PANEL 16
/* Registers that a panel takes. */
#define PARTS (PANEL / WIDE)
/* Panels of 4-bit numbers lie in fours, which few tokens read as one stream. */
#define FOUR 4

/* Panel p, input e, output o of the panel: number (p * E + e) * 16 + o. Scale and zero of quantised ones:
 * (p * G + g) * 16 + o, and weight = (number - zero) * scale; where there are offsets, number * scale + offset. Of
 * 4-bit numbers two inputs share a byte, ((p / 4 * E / 2 + e / 2) * 4 + p % 4) * 16 + o, and scales and the rest lie
 * alike: ((p / 4 * G + g) * 4 + p % 4) * 16 + o. */
struct weight {
    const void *numbers;
    const void *scales, *zeros, *offsets;
    int scale_kind;
    float zero;
    size_t inputs, outputs, group, groups;
};

INLINE size_t panel_bytes(const struct weight *w, int kind) {
    size_t numbers = w->inputs * PANEL;
    if (kind == INT8 || kind == E4M3) return numbers;
    return kind == FP32 ? numbers * 4 : kind == INT4 ? numbers / 2 : numbers * 2;
}

INLINE const char *panel_start(const struct weight *w, int kind, size_t panel) {
    const size_t bytes = panel_bytes(w, kind);
    if (kind == INT4) return (const char *)w->numbers + panel / FOUR * FOUR * bytes + panel % FOUR * PANEL;
    return (const char *)w->numbers + panel * bytes;
}

/* From a panel to the next one of a tile. */
INLINE size_t panel_stride(const struct weight *w, int kind) { return kind == INT4 ? PANEL : panel_bytes(w, kind); }

/* Where the scale, zero and offset of a panel's group are. */
INLINE size_t figure_place(const struct weight *w, int kind, size_t panel, size_t group) {
    if (kind == INT4) return ((panel / FOUR * w->groups + group) * FOUR + panel % FOUR) * PANEL;
    return (panel * w->groups + group) * PANEL;
}

/* Scales or zeros of some outputs; no zeros = the same for all. */
INLINE wides figures(const struct weight *w, const void *from, size_t at) {
    if (!from) return spread(w->zero);
    return w->scale_kind == FP16 ? load_wide_kind(from, at, FP16) : load_wide_kind(from, at, FP32);
}

INLINE wides offset_at(const struct weight *w, size_t at, wides scale) {
    return w->offsets ? figures(w, w->offsets, at) : -figures(w, w->zeros, at) * scale;
}

INLINE void expand_kind(const struct weight *w, size_t panel, size_t start, size_t end, int kind, float *to) {
    const char *numbers = panel_start(w, kind, panel);
    /* In steps of one or two inputs; a group of an odd number of 4-bit inputs is not taken. */
    for (size_t e = start; e < end;) {
        const size_t group = e / w->group, past = (group + 1) * w->group, stop = past < end ? past : end;
        const size_t at = figure_place(w, kind, panel, group);
        wides scales[PARTS], offsets[PARTS];
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; part++) {
            scales[part] = figures(w, w->scales, at + WIDE * part);
            offsets[part] = offset_at(w, at + WIDE * part, scales[part]);
        }
        for (; e < stop; to += PANEL) {
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++) {
                const size_t place = WIDE * part;
                if (kind == INT4) {
                    /* A byte holds two inputs, the first in its low half. */
                    const wide_ints pair = load_wide_bytes((const uint8_t *)numbers + e / 2 * FOUR * PANEL + place);
                    store_wide(to + place, multiply_add_wide(low_numbers(pair), scales[part], offsets[part]));
                    store_wide(to + PANEL + place, multiply_add_wide(high_numbers(pair), scales[part], offsets[part]));
                } else {
                    const wides number = load_wide_kind(numbers, e * PANEL + place, kind);
                    store_wide(to + place, multiply_add_wide(number, scales[part], offsets[part]));
                }
            }
            e += 1;
            if (kind == INT4) e += 1, to += PANEL;
        }
    }
}

/* Write inputs [start, end) of a quantised panel to `to` in fp32; `start` is even. */
static void expand(const struct weight *w, size_t panel, size_t start, size_t end, int kind, float *to) {
    if (kind == INT4) expand_kind(w, panel, start, end, INT4, to);
    else if (kind == E4M3) expand_kind(w, panel, start, end, E4M3, to);
    else expand_kind(w, panel, start, end, INT8, to);
}

#endif
