/* Clusters of hashes that differ in few bits: the connected components of all pairs within a distance. */
#ifndef WDS_TOOLS_CLUSTER_H
#define WDS_TOOLS_CLUSTER_H

#include <stddef.h>
#include <stdint.h>

#define MAX_DISTANCE 16 /* bits */

/* Returns the first of `count` hashes, from `start` on, that differs from `hash` in at most `distance` bits; `count` if
   none does. */
typedef size_t FindNear(const uint64_t *hashes, size_t start, size_t count, uint64_t hash, int distance);

/* Joins the clusters of all pairs of `count` different hashes that differ in at most `distance` bits, 1 to MAX_DISTANCE.

   `parents` has for each hash the number of another one of its cluster, which is not larger, or its own; at first its
   own. Of the parts into which the work is divided, numbered from 0, this call does those with a number of `first` +
   a multiple of `step`. Several threads may call it with the same `parents`. There are `distance` + 1 parts.

   Returns 0, or -1 if memory ran out. */
int join_clusters(
    const uint64_t *hashes, uint32_t count, int distance, int first, int step, uint32_t *parents);

#endif
