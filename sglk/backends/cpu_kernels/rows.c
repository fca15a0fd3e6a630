/* Looking rows of a matrix in panels up. */

#include "weight.h"

INLINE float one_number(const void *from, size_t at, int kind) {
    if (kind == FP32) return ((const float *)from)[at];
    const uint16_t bits = ((const uint16_t *)from)[at];
    if (kind == FP16) return half_to_float(bits);
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Rows of a matrix of `outputs` rows in panels: y[t] = W[ids[t]], NaN where there is no such row. Numbers of 8 and 4
 * bits have scales, one for each group of inputs. */
void sglk_rows(int kind, const void *numbers, int scale_kind, const void *scales, const void *offsets, size_t outputs,
               size_t inputs, size_t group, const int64_t *ids, size_t count, float *y) {
    const size_t groups = (inputs + group - 1) / group;
    for (size_t t = 0; t < count; t++) {
        const size_t panel = (size_t)ids[t] / PANEL, o = (size_t)ids[t] % PANEL;
        float *row = y + t * inputs;
        if ((uint64_t)ids[t] >= outputs) {
            for (size_t e = 0; e < inputs; e++) row[e] = NAN;
            continue;
        }
        for (size_t e = 0; e < inputs; e++) {
            const size_t at = (panel * inputs + e) * PANEL + o, figure = (panel * groups + e / group) * PANEL + o;
            if (kind == INT4) {
                const size_t four = panel / FOUR, place = panel % FOUR * PANEL + o;
                const int pair = ((const uint8_t *)numbers)[(four * inputs / 2 + e / 2) * FOUR * PANEL + place];
                const size_t its = (four * groups + e / group) * FOUR * PANEL + place;
                const float scaled = (float)(e % 2 ? pair >> 4 : pair & 15) * one_number(scales, its, scale_kind);
                row[e] = scaled + one_number(offsets, its, scale_kind);
            } else if (kind == INT8) {
                row[e] = (float)((const int8_t *)numbers)[at] * one_number(scales, figure, scale_kind);
            } else {
                row[e] = one_number(numbers, at, kind);
            }
        }
    }
}
