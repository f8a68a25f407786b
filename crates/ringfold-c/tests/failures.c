/* Rank 1 of 3 does what its argument says; the others find out in a call, and see who it was. */
#include <ringfold.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int interrupts(void *waits) {
    return ++*(int *)waits > 2;
}

/* Whether the last failure was of this class, and named rank 1. */
static int names_rank_1(ringfold_status_t status, ringfold_status_t expected) {
    int ranks[4];
    size_t named = ringfold_error_ranks(ranks, 4);
    for (size_t i = 0; i < named && i < 4; i++) {
        if (ranks[i] == 1 && status == expected && ringfold_is_fatal(status)) {
            return 1;
        }
    }
    fprintf(stderr, "%s: %s\n", ringfold_status_name(status), ringfold_error_message());
    return 0;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    ringfold_comm_t *comm;
    if (ringfold_init(&comm) != RINGFOLD_OK) {
        fprintf(stderr, "%s\n", ringfold_error_message());
        return 2;
    }
    float word = 1;
    if (ringfold_barrier(comm) != RINGFOLD_OK) {
        return 2;
    }
    ringfold_status_t expected = RINGFOLD_ABORTED, status;
    if (strcmp(what, "exit") == 0) {
        if (ringfold_rank(comm) == 1) {
            _exit(3);
        }
        expected = RINGFOLD_PEER_FAILED;
        status = ringfold_all_reduce(comm, &word, &word, 1, RINGFOLD_FLOAT32, RINGFOLD_SUM);
    } else if (strcmp(what, "mismatch") == 0) {
        size_t elements = ringfold_rank(comm) == 1 ? 2 : 1;
        float words[2] = {1, 1};
        expected = RINGFOLD_MISMATCH;
        status = ringfold_all_reduce(comm, words, words, elements, RINGFOLD_FLOAT32, RINGFOLD_SUM);
    } else if (strcmp(what, "abort") == 0) {
        if (ringfold_rank(comm) == 1) {
            ringfold_abort(comm, "rank 1 has had enough");
        }
        status = ringfold_all_reduce(comm, &word, &word, 1, RINGFOLD_FLOAT32, RINGFOLD_SUM);
    } else {
        /* Rank 1 waits for a message that does not come, until its own look-out ends it. */
        int waits = 0;
        ringfold_request_t request = {
            .size = sizeof request,
            .collective = RINGFOLD_RECV,
            .dtype = RINGFOLD_FLOAT32,
            .root = 0,
            .count = 1,
            .output = &word,
        };
        status = ringfold_rank(comm) == 1
                     ? ringfold_run(comm, &request, NULL, interrupts, &waits)
                     : ringfold_all_reduce(comm, &word, &word, 1, RINGFOLD_FLOAT32, RINGFOLD_SUM);
    }
    int is_right = names_rank_1(status, expected);
    is_right &= ringfold_fault(comm) == expected;
    ringfold_free(comm);
    return is_right ? 0 : 1;
}
