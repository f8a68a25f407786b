/* Reduces each bucket of gradients while the next one is computed.
 *
 * After crates/ringfold-c/install.sh, which installs the file that pkg-config reads:
 *
 *   cc overlap.c -o overlap $(pkg-config --cflags --libs ringfold)
 *   ringfold run --ranks 2 -- ./overlap
 */
#include <ringfold.h>
#include <stdio.h>
#include <stdlib.h>

#define BUCKETS 4
#define BUCKET_BYTES (BUCKET_ELEMENTS * sizeof(float))
#define BUCKET_ELEMENTS ((size_t)1 << 18)

static void check(ringfold_status_t status) {
    if (status != RINGFOLD_OK) {
        fprintf(stderr, "%s\n", ringfold_error_message());
        exit(1);
    }
}

/* Stands for a backward pass: fills a bucket. */
static void compute(float *bucket, int number, int rank) {
    for (size_t i = 0; i < BUCKET_ELEMENTS; i++) {
        bucket[i] = (float)(number * (rank + 1));
    }
}

int main(void) {
    ringfold_comm_t *comm;
    check(ringfold_init(&comm));
    int rank = ringfold_rank(comm), ranks = ringfold_world_size(comm);

    /* Memory that the ranks of a host reach directly: their calls copy less. */
    ringfold_memory_t *memory;
    check(ringfold_alloc(comm, BUCKETS * BUCKET_BYTES, &memory));
    float *buckets = ringfold_memory_address(memory);

    ringfold_work_t *works[BUCKETS];
    for (int number = 0; number < BUCKETS; number++) {
        float *bucket = buckets + number * BUCKET_ELEMENTS;
        compute(bucket, number, rank);
        ringfold_request_t request = {
            .size = sizeof request,
            .collective = RINGFOLD_ALL_REDUCE,
            .dtype = RINGFOLD_FLOAT32,
            .op = RINGFOLD_SUM,
            .count = BUCKET_ELEMENTS,
            .input = bucket,
            .output = bucket, /* in place */
        };
        check(ringfold_start(comm, &request, &works[number]));
    }
    for (int number = 0; number < BUCKETS; number++) {
        check(ringfold_wait(works[number]));
        ringfold_work_free(works[number]);
        float expected = (float)(number * ranks * (ranks + 1) / 2);
        if (buckets[number * BUCKET_ELEMENTS] != expected) {
            fprintf(stderr, "bucket %d is wrong\n", number);
            return 1;
        }
    }
    printf("rank %d: %d buckets over %s\n", rank, BUCKETS, ringfold_transport(comm));

    ringfold_memory_free(memory);
    check(ringfold_close(comm));
    ringfold_free(comm);
    return 0;
}
