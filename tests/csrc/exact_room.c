/* In place of csrc/room.c where the fuzzer is built: memory of exactly the size that was asked for, new at each call, and
   full of something else each time. So AddressSanitizer sees what is written behind it, and what is used after the next
   call; and samples that nothing was written to differ from run to run. */
#include <stdlib.h>
#include <string.h>

#include "room.h"

#define ALIGNMENT 64
#define MOST_FILLED 8192

uint8_t *room_for(Room *room, size_t size)
{
    static uint8_t filler;
    size_t whole = size + SLACK;
    free(room->bytes);
    room->bytes = NULL;
    room->size = size;
    if (posix_memalign((void **)(void *)&room->bytes, ALIGNMENT, whole))
        return NULL;
    memset(room->bytes, filler += 85, whole < MOST_FILLED ? whole : MOST_FILLED);
    return room->bytes;
}

void room_free(Room *room)
{
    free(room->bytes);
    *room = (Room){0};
}
