/* Times one of MPI's collectives as `ringfold perf --rewrite` times ringfold's: one store to every cache line of the
 * input and a barrier before each call, both untimed; each iteration's time is the slowest rank's.
 *
 * Usage: collectives_mpi COLLECTIVE COUNT ITERATIONS BUDGET_MS PLACEMENT...
 *
 * COUNT is in floats: of the whole vector, or of one rank's share where ranks have shares. Several counts, separated by
 * commas, are measured one after the other. PLACEMENT is `out` or `in`. After two calls the ranks agree on how many
 * iterations BUDGET_MS leaves room for: at least MIN_ITERATIONS, at most ITERATIONS. Prints a line for each count and
 * placement: its name, the first call's time, then every iteration's, in us.
 *
 * `ring` is an all-reduce of our own on MPI's messages, as baidu-allreduce and courses on MPI have it: the vector cut
 * into as many chunks as there are ranks, whole chunks passed on to the right and waited for, step by step.
 *
 * Compiled with -DLIBRARY, all_reduce is that of another library, behind library.h, and the barrier, too. */
#include "library.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE_FLOATS 16
#define PAGE_BYTES 4096
#define MIN_ITERATIONS 3
#define ROOT 0

static int rank, ranks;

/* A collective's call. `count` as above; `input` and `output` have room for the whole vector, or all ranks' shares. */
typedef void call_t(float *input, float *output, int count, int in_place);

#ifdef LIBRARY
static void all_reduce(float *input, float *output, int count, int in_place) {
    library_all_reduce(input, in_place ? input : output, count);
}

static void enter_barrier(void) {
    library_barrier();
}
#else
static void all_reduce(float *input, float *output, int count, int in_place) {
    MPI_Allreduce(in_place ? MPI_IN_PLACE : input, in_place ? input : output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void enter_barrier(void) {
    MPI_Barrier(MPI_COMM_WORLD);
}
#endif

static void broadcast(float *input, float *output, int count, int in_place) {
    (void)output, (void)in_place;
    MPI_Bcast(input, count, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}

static void reduce(float *input, float *output, int count, int in_place) {
    int at_root = in_place && rank == ROOT;
    MPI_Reduce(at_root ? MPI_IN_PLACE : input, at_root ? input : output, count, MPI_FLOAT, MPI_SUM, ROOT, MPI_COMM_WORLD);
}

static void all_gather(float *input, float *output, int count, int in_place) {
    MPI_Allgather(in_place ? MPI_IN_PLACE : input, count, MPI_FLOAT, in_place ? input : output, count, MPI_FLOAT,
                  MPI_COMM_WORLD);
}

static void reduce_scatter(float *input, float *output, int count, int in_place) {
    MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : input, in_place ? input : output, count, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
}

static void all_to_all(float *input, float *output, int count, int in_place) {
    MPI_Alltoall(in_place ? MPI_IN_PLACE : input, count, MPI_FLOAT, in_place ? input : output, count, MPI_FLOAT,
                 MPI_COMM_WORLD);
}

static void gather(float *input, float *output, int count, int in_place) {
    int at_root = in_place && rank == ROOT;
    float *own = input + (in_place ? (size_t)rank * count : 0);
    MPI_Gather(at_root ? MPI_IN_PLACE : own, count, MPI_FLOAT, at_root ? input : output, count, MPI_FLOAT, ROOT,
               MPI_COMM_WORLD);
}

static void scatter(float *input, float *output, int count, int in_place) {
    int at_root = in_place && rank == ROOT;
    MPI_Scatter(input, count, MPI_FLOAT, at_root ? MPI_IN_PLACE : output, count, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}

static void barrier(float *input, float *output, int count, int in_place) {
    (void)input, (void)output, (void)count, (void)in_place;
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Where chunk `index` (mod ranks) of a vector of `count` begins; the chunk after the last begins at the end. */
static int chunk_begin(int index, int count) {
    return (int)((long long)count * index / ranks);
}

static float *received; /* Room for a chunk on its way, made before the first call. */

static void ring(float *input, float *output, int count, int in_place) {
    float *data = in_place ? input : output;
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    if (!in_place) memcpy(output, input, sizeof(float) * count);
    /* In step s a rank passes on what it has summed of chunk rank - s, and adds the left one's sum to chunk rank - s - 1. */
    for (int step = 0; step < ranks - 1; step++) {
        int give = (rank + ranks - step) % ranks, take = (give + ranks - 1) % ranks;
        int give_at = chunk_begin(give, count), take_at = chunk_begin(take, count);
        int taken = chunk_begin(take + 1, count) - take_at;
        MPI_Request request;
        MPI_Irecv(received, taken, MPI_FLOAT, left, 0, MPI_COMM_WORLD, &request);
        MPI_Send(data + give_at, chunk_begin(give + 1, count) - give_at, MPI_FLOAT, right, 0, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (int i = 0; i < taken; i++) data[take_at + i] += received[i];
    }
    /* Now chunk rank + 1 is complete here; complete chunks go round. */
    for (int step = 0; step < ranks - 1; step++) {
        int give = (rank + 1 + ranks - step) % ranks, take = (give + ranks - 1) % ranks;
        int give_at = chunk_begin(give, count), take_at = chunk_begin(take, count);
        MPI_Sendrecv(data + give_at, chunk_begin(give + 1, count) - give_at, MPI_FLOAT, right, 0, data + take_at,
                     chunk_begin(take + 1, count) - take_at, MPI_FLOAT, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

/* What is said of a collective besides its call. */
typedef struct {
    const char *name;
    call_t *call;
    int has_shares;  /* Each rank has a share of `count`: the whole is as many times as much. */
    int gives_share; /* A rank's input is one share, in place its own place in the output. */
    int root_gives;  /* Only the root has an input. */
} collective_t;

static const collective_t COLLECTIVES[] = {
    {"all_reduce", all_reduce, 0, 0, 0}, {"ring", ring, 0, 0, 0},         {"broadcast", broadcast, 0, 0, 1},
    {"reduce", reduce, 0, 0, 0},         {"all_gather", all_gather, 1, 1, 0}, {"reduce_scatter", reduce_scatter, 1, 0, 0},
    {"all_to_all", all_to_all, 1, 0, 0}, {"gather", gather, 1, 1, 0},     {"scatter", scatter, 1, 0, 1},
    {"barrier", barrier, 0, 0, 0},
};

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

/* As a framework's allocator aligns large tensors, and written, so that no page fault falls into a timed call. */
static void *memory(size_t bytes) {
    void *start = NULL;
    if (posix_memalign(&start, PAGE_BYTES, bytes + PAGE_BYTES) != 0) {
        fprintf(stderr, "cannot allocate %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(start, 0, bytes + PAGE_BYTES);
    return start;
}

/* What is measured: a collective's call on these buffers. */
typedef struct {
    const collective_t *collective;
    float *input, *output;
    int count, in_place;
} work_t;

/* The input is stored to at every cache line, so that no other core has it any more. */
static double call_us(const work_t *work) {
    const collective_t *collective = work->collective;
    float *begin = work->input;
    size_t floats = (size_t)work->count * (collective->has_shares && !collective->gives_share ? ranks : 1);
    if (collective->gives_share && work->in_place) begin += (size_t)rank * work->count;
    if (!collective->root_gives || rank == ROOT)
        for (size_t i = 0; i < floats; i += LINE_FLOATS) ((volatile float *)begin)[i] = 0;
    enter_barrier();
    double start_us = now_us();
    collective->call(work->input, work->output, work->count, work->in_place);
    return now_us() - start_us;
}

/* How many iterations a budget leaves room for, all ranks agreeing, when one takes `us` with all around it. */
static int agreed_iterations(double us, double budget_us, int most) {
    MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double room = budget_us / us;
    if (most <= MIN_ITERATIONS || room >= most) return most;
    return room > MIN_ITERATIONS ? (int)room : MIN_ITERATIONS;
}

static void measure(const work_t *work, int most, double budget_us) {
    double *times = memory(sizeof(double) * (most + 1)), *slowest = memory(sizeof(double) * (most + 1));
    /* The first of them finds ranks asleep that waited for the slowest writer. */
    enter_barrier();
    times[0] = call_us(work);
    double begin_us = now_us();
    times[1] = call_us(work);
    int iterations = agreed_iterations(now_us() - begin_us, budget_us, most);
    for (int i = 2; i <= iterations; i++) times[i] = call_us(work);
    MPI_Reduce(times, slowest, iterations + 1, MPI_DOUBLE, MPI_MAX, ROOT, MPI_COMM_WORLD);
    if (rank == ROOT) {
        printf("%s", work->in_place ? "in" : "out");
        for (int i = 0; i <= iterations; i++) printf(" %.3f", slowest[i]);
        printf("\n");
        fflush(stdout);
    }
    free(times);
    free(slowest);
}

/* Whether an all-reduce adds up: `ring` is our own, and wrong results are no comparison. */
static void check(const work_t *work) {
    const int period = 1024; /* Sums stay exact. */
    float *result = work->in_place ? work->input : work->output;
    for (int i = 0; i < work->count; i++) work->input[i] = rank + i % period;
    work->collective->call(work->input, work->output, work->count, work->in_place);
    for (int i = 0; i < work->count; i++) {
        if (result[i] != ranks * (ranks - 1) / 2 + ranks * (i % period)) {
            fprintf(stderr, "%s: element %d on rank %d is wrong\n", work->collective->name, i, rank);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

/* What follows the first of several counts; NULL after the last. */
static const char *next_count(const char *counts) {
    const char *comma = strchr(counts, ',');
    return comma == NULL ? NULL : comma + 1;
}

int main(int argc, char **argv) {
#ifdef LIBRARY
    /* The library may call MPI in a thread of its own. */
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
#else
    MPI_Init(&argc, &argv);
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const collective_t *collective = NULL;
    for (size_t i = 0; argc > 5 && i < sizeof COLLECTIVES / sizeof *COLLECTIVES; i++)
        if (strcmp(COLLECTIVES[i].name, argv[1]) == 0) collective = &COLLECTIVES[i];
    if (collective == NULL) {
        fprintf(stderr, "usage: collectives_mpi COLLECTIVE COUNT ITERATIONS BUDGET_MS PLACEMENT...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int most = 0, iterations = atoi(argv[3]);
    for (const char *at = argv[2]; at != NULL; at = next_count(at))
        if (atoi(at) > most) most = atoi(at);
#ifdef LIBRARY
    library_begin(rank, ranks);
#endif
    size_t bytes = sizeof(float) * most * (collective->has_shares ? ranks : 1);
    work_t work = {collective, memory(bytes), memory(bytes), 0, 0};
    received = memory(sizeof(float) * (most / ranks + 1));
    for (const char *at = argv[2]; at != NULL; at = next_count(at)) {
        work.count = atoi(at);
        for (int arg = 5; arg < argc; arg++) {
            work.in_place = strcmp(argv[arg], "in") == 0;
            measure(&work, iterations, atof(argv[4]) * 1e3);
            if (collective->call == ring || collective->call == all_reduce) check(&work);
        }
    }
    MPI_Finalize();
}
