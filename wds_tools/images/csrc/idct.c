#include "idct.h"

#define PAIRED_INDEX(i) PAIRED_POSITION((i) / BLOCK_SIDE, (i) % BLOCK_SIDE)

void set_paired_quantization(const uint16_t *row_order, PairedQuantization *out)
{
    for (int i = 0; i < BLOCK_SIZE; i++)
        out->value[PAIRED_INDEX(i)] = (int16_t)row_order[i];
}

void set_paired_order(CoefficientOrder *order)
{
    memset(order->position, PAIRED_INDEX(BLOCK_SIZE - 1), sizeof order->position);
    for (int k = 0; k < BLOCK_SIZE; k++)
        order->position[k] = (uint8_t)PAIRED_INDEX(zigzag[k]);
}
