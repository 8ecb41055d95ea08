/* Where the time of a batch goes. */
#ifndef WDS_TOOLS_STOPWATCH_H
#define WDS_TOOLS_STOPWATCH_H

#include <time.h>

/* Seconds. */
typedef struct {
    double slice, decode, resize, write;
} Timings;

typedef struct {
    Timings spent;
    double since; /* what has been added last */
    int is_wanted;
} Stopwatch;

static inline double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void stopwatch_start(Stopwatch *watch, int is_wanted)
{
    *watch = (Stopwatch){.since = is_wanted ? seconds() : 0, .is_wanted = is_wanted};
}

/* Adds the time that has passed since the last call to a step, which is in watch->spent. */
static inline void add_elapsed(Stopwatch *watch, double *step)
{
    if (watch->is_wanted) {
        double now = seconds();
        *step += now - watch->since;
        watch->since = now;
    }
}

#endif
