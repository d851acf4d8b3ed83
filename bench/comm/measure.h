/* Calls of a message passing library that measure.c needs; each must succeed. One of over_*.h defines them. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* A send or a receive that has been started. */
typedef struct passing passing;

static int rank, ranks;

static void begin(int* argc, char*** argv); /* sets rank and ranks */
static void end(void);

static void send_to(int to, const void* bytes, size_t size);
static void receive_from(int from, void* bytes, size_t size);
static void start_send(passing* one, int to, const void* bytes, size_t size);
static void start_receive(passing* one, int from, void* bytes, size_t size);
static void wait_for(passing* all, int count);

/* Collectives of 32-bit integers; reductions are sums; the root is rank 0. */
static void barrier(void);
static void broadcast(int32_t* buffer, int count);
static void gather(const int32_t* input, int32_t* output, int count);
static void scatter(const int32_t* input, int32_t* output, int count);
static void allgather(const int32_t* input, int32_t* output, int count);
static void alltoall(const int32_t* input, int32_t* output, int count);
static void reduce(const int32_t* input, int32_t* output, int count);
static void allreduce(const int32_t* input, int32_t* output, int count);
static void reduce_scatter(const int32_t* input, int32_t* output, int count);
static void scan(const int32_t* input, int32_t* output, int count);

#endif
