#include "room.h"

#include <stdlib.h>

#define ALIGNMENT 64

uint8_t *room_for(Room *room, size_t size)
{
    if (room->size < size || !room->bytes) {
        free(room->bytes);
        size += size / 2; /* the next picture may be larger: fresh memory costs a page fault per 4 kB */
        size_t whole = (size + SLACK + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        room->bytes = aligned_alloc(ALIGNMENT, whole);
        room->size = room->bytes ? size : 0;
    }
    return room->bytes;
}

void room_free(Room *room)
{
    free(room->bytes);
    *room = (Room){0};
}
