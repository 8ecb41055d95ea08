/* Measures how long each step of a batch takes. */
#ifndef WDS_TOOLS_STOPWATCH_H
#define WDS_TOOLS_STOPWATCH_H

#include <time.h>

/* The seconds of each step: _STEPS in native.py. */
typedef struct {
    double slice, decode, resize, write;
} Timings;

typedef struct {
    Timings elapsed;
    double last; /* time of the last call */
    int is_enabled;
} Stopwatch;

static inline double monotonic_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Starts a stopwatch. If `enable` is 0, it never reads the clock. */
static inline void stopwatch_start(Stopwatch *watch, int enable)
{
    *watch = (Stopwatch){.last = enable ? monotonic_seconds() : 0, .is_enabled = enable};
}

/* Adds the time since the last call to `step`, which is a member of watch->elapsed. */
static inline void add_elapsed(Stopwatch *watch, double *step)
{
    if (watch->is_enabled) {
        double now = monotonic_seconds();
        *step += now - watch->last;
        watch->last = now;
    }
}

#endif
