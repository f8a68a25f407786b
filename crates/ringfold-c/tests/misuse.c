/* Wrong arguments, on all ranks: each is refused with a text, and the communicator still works. */
#include <math.h>
#include <ringfold.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int mistakes = 0;

/* A call that must have this status, and a text if it failed. */
#define EXPECT(call, expected)                                                                     \
    do {                                                                                           \
        ringfold_status_t status = (call);                                                         \
        int has_text = status == RINGFOLD_OK || ringfold_error_message()[0] != '\0';              \
        if (status != (expected) || !has_text) {                                                   \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, ringfold_status_name(status),           \
                    status == RINGFOLD_OK ? "" : ringfold_error_message());                        \
            mistakes++;                                                                            \
        }                                                                                          \
    } while (0)

#define REFUSED(call) EXPECT(call, RINGFOLD_INVALID_ARGUMENT)

static float words[8], others[64];

static void count(void *argument) {
    ++*(int *)argument;
}

/* Numbers and lengths that mean nothing. */
static void refuse_calls(ringfold_comm_t *comm) {
    const uint32_t type = RINGFOLD_FLOAT32, sum = RINGFOLD_SUM;
    REFUSED(ringfold_all_reduce(NULL, words, words, 8, type, sum));
    REFUSED(ringfold_all_reduce(comm, NULL, words, 8, type, sum));
    REFUSED(ringfold_all_reduce(comm, words, NULL, 8, type, sum));
    REFUSED(ringfold_all_reduce(comm, words, words, 8, 0, sum));
    REFUSED(ringfold_all_reduce(comm, words, words, 8, 999, sum));
    REFUSED(ringfold_all_reduce(comm, words, words, 8, type, 0));
    REFUSED(ringfold_all_reduce(comm, words, words, 8, type, 77));
    REFUSED(ringfold_all_reduce(comm, words, words, 8, type, RINGFOLD_BAND));
    REFUSED(ringfold_all_reduce(comm, words, words, 8, type, RINGFOLD_PREMUL_SUM));
    REFUSED(ringfold_all_reduce(comm, words, words, SIZE_MAX, type, sum));
    REFUSED(ringfold_all_reduce(comm, words, words, SIZE_MAX / 4, type, sum));
    REFUSED(ringfold_all_reduce(comm, words, words, (size_t)1 << 61, type, sum));
    REFUSED(ringfold_all_reduce(comm, words, words + 1, 7, type, sum));
    REFUSED(ringfold_all_gather(comm, words, words, SIZE_MAX / 2, type));
    REFUSED(ringfold_broadcast(comm, words, 8, type, -1));
    REFUSED(ringfold_broadcast(comm, words, 8, type, ringfold_world_size(comm)));
    REFUSED(ringfold_send(comm, words, 8, type, 1 << 30, 0));
    REFUSED(ringfold_recv(comm, words, 8, type, -7, 0, NULL));
    EXPECT(ringfold_all_reduce(comm, NULL, NULL, 0, type, sum), RINGFOLD_OK);
    /* Memory need not be aligned. */
    char *odd = (char *)others + 1;
    EXPECT(ringfold_all_reduce(comm, odd, odd + 100, 8, type, sum), RINGFOLD_OK);
}

static void refuse_requests(ringfold_comm_t *comm) {
    ringfold_request_t request;
    memset(&request, 0, sizeof request);
    REFUSED(ringfold_run(comm, NULL, NULL, NULL, NULL));
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL));
    request.size = sizeof request;
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL));
    request.collective = 99;
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL));
    request.collective = RINGFOLD_ALL_REDUCE;
    request.dtype = RINGFOLD_FLOAT32;
    request.op = RINGFOLD_SUM;
    request.count = 8;
    request.input = words;
    request.output = words;
    for (int i = 0; i < 2; i++) {
        request.algorithm = i == 0 ? "nonsense" : "\xff\xfe";
        REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL));
    }
    request.algorithm = NULL;
    for (int i = 0; i < 2; i++) {
        request.timeout_s = i == 0 ? -1 : NAN;
        REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL));
    }
    for (int i = 0; i < 2; i++) {
        request.timeout_s = i == 0 ? INFINITY : 1e300;
        EXPECT(ringfold_run(comm, &request, NULL, NULL, NULL), RINGFOLD_OK);
    }
    request.timeout_s = 0;
    request.size = 4;
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL));
    request.size = 1 << 20;
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL));
    request.size = sizeof request;

    ringfold_work_t *work = NULL;
    bool is_done = false;
    int called = 0;
    REFUSED(ringfold_start(comm, &request, NULL));
    REFUSED(ringfold_start(comm, NULL, &work));
    REFUSED(ringfold_start(NULL, &request, &work));
    REFUSED(ringfold_start_group(comm, NULL, 3, &work));
    REFUSED(ringfold_start_group(comm, &request, 1, NULL));
    EXPECT(ringfold_start(comm, &request, &work), RINGFOLD_OK);
    REFUSED(ringfold_wait_for(work, -1, &is_done));
    REFUSED(ringfold_wait_for(work, NAN, &is_done));
    REFUSED(ringfold_wait_for(work, 1, NULL));
    REFUSED(ringfold_when_done(work, NULL, &called));
    REFUSED(ringfold_wait(NULL));
    EXPECT(ringfold_wait(work), RINGFOLD_OK);
    EXPECT(ringfold_wait(work), RINGFOLD_OK);
    EXPECT(ringfold_when_done(work, count, &called), RINGFOLD_OK);
    mistakes += called != 1 || ringfold_source(work) != -1 || !ringfold_is_done(NULL);
    ringfold_work_free(work);
    ringfold_work_free(NULL);
}

static void refuse_objects(ringfold_comm_t *comm) {
    ringfold_comm_t *part = comm;
    EXPECT(ringfold_split(comm, RINGFOLD_NO_COLOR, 0, &part), RINGFOLD_OK);
    mistakes += part != NULL;
    REFUSED(ringfold_split(comm, -7, 0, &part));
    REFUSED(ringfold_split(comm, 0, 0, NULL));
    ringfold_memory_t *memory = NULL;
    EXPECT(ringfold_alloc(comm, 0, &memory), RINGFOLD_OK);
    ringfold_memory_free(memory);
    REFUSED(ringfold_alloc(comm, 100, NULL));
    ringfold_registration_t *registration = NULL;
    REFUSED(ringfold_register(comm, NULL, 100, &registration));
    REFUSED(ringfold_register(comm, words, sizeof words, NULL));
    ringfold_config_t *config = NULL;
    REFUSED(ringfold_config_new(NULL));
    EXPECT(ringfold_config_new(&config), RINGFOLD_OK);
    REFUSED(ringfold_config_set(config, "nope", "1"));
    REFUSED(ringfold_config_set(config, "timeout", "x"));
    REFUSED(ringfold_config_set(config, NULL, "1"));
    REFUSED(ringfold_config_set(config, "rank", NULL));
    REFUSED(ringfold_config_set(config, "rank", "-1"));
    REFUSED(ringfold_config_set(NULL, "rank", "1"));
    EXPECT(ringfold_config_set(config, "address", "bad"), RINGFOLD_OK);
    REFUSED(ringfold_connect(config, NULL, &part));
    ringfold_config_free(config);
    REFUSED(ringfold_init(NULL));
    mistakes += ringfold_listener_address(NULL) != NULL || ringfold_rank(NULL) != -1;
    mistakes += ringfold_error_ranks(NULL, 5) != 0;
}

/* A child of fork has handles of its parent, and harms nothing by using them. */
static void fork_a_child(ringfold_comm_t *comm) {
    pid_t child = fork();
    if (child == 0) {
        mistakes = 0;
        EXPECT(ringfold_barrier(comm), RINGFOLD_UNSUPPORTED);
        EXPECT(ringfold_close(comm), RINGFOLD_UNSUPPORTED);
        EXPECT(ringfold_abort(comm, "a child"), RINGFOLD_UNSUPPORTED);
        ringfold_free(comm);
        _exit(mistakes);
    }
    int status = 1;
    waitpid(child, &status, 0);
    mistakes += status != 0;
}

int main(void) {
    ringfold_comm_t *comm;
    mistakes += ringfold_error_message()[0] != '\0';
    if (ringfold_init(&comm) != RINGFOLD_OK) {
        fprintf(stderr, "%s\n", ringfold_error_message());
        return 2;
    }
    refuse_calls(comm);
    refuse_requests(comm);
    refuse_objects(comm);
    fork_a_child(comm);
    EXPECT(ringfold_barrier(comm), RINGFOLD_OK);
    EXPECT(ringfold_fault(comm), RINGFOLD_OK);
    REFUSED(ringfold_abort(NULL, "x"));
    REFUSED(ringfold_abort(comm, NULL));
    EXPECT(ringfold_close(comm), RINGFOLD_OK);
    EXPECT(ringfold_close(comm), RINGFOLD_OK);
    EXPECT(ringfold_barrier(comm), RINGFOLD_CLOSED);
    ringfold_free(comm);
    ringfold_free(NULL);
    return mistakes == 0 ? 0 : 1;
}
