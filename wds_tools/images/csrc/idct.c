#include "idct.h"

#define PAIRED(k) PLACE((k) / SIDE, (k) % SIDE)

void pair_quantization(const uint16_t *by_rows, Quantization *out)
{
    for (int i = 0; i < BLOCK; i++)
        out->at[PAIRED(i)] = (int16_t)by_rows[i];
}

void pair_order(Order *order)
{
    memset(order->at, PAIRED(BLOCK - 1), sizeof order->at);
    for (int k = 0; k < BLOCK; k++)
        order->at[k] = (uint8_t)PAIRED(zigzag[k]);
}
