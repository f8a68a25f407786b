/* Calls every function of ringfold.h, and compares with what it promises. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <pthread.h>
#include <ringfold.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int rank, ranks;
static ringfold_comm_t *comm;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d, line %d: %s (%s)\n", rank, __LINE__, #condition,             \
                    ringfold_error_message());                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define WELL(call) EXPECT((call) == RINGFOLD_OK)

/* A call that must be refused, with a text that has these words. */
#define REFUSED(call, words)                                                                       \
    do {                                                                                           \
        EXPECT((call) == RINGFOLD_INVALID_ARGUMENT);                                               \
        EXPECT(strstr(ringfold_error_message(), words));                                           \
    } while (0)

static void collectives(void) {
    int one[4] = {rank, 1, 2, 3}, all[64], part[4];
    WELL(ringfold_all_reduce(comm, one, part, 4, RINGFOLD_INT32, RINGFOLD_SUM));
    EXPECT(part[0] == ranks * (ranks - 1) / 2 && part[3] == 3 * ranks && one[0] == rank);
    WELL(ringfold_all_reduce(comm, one, one, 1, RINGFOLD_INT32, RINGFOLD_MAX));
    EXPECT(one[0] == ranks - 1);

    one[0] = rank;
    WELL(ringfold_broadcast(comm, one, 1, RINGFOLD_INT32, ranks - 1));
    EXPECT(one[0] == ranks - 1);

    double value = rank + 1, product = 0;
    double *place = rank == 0 ? &product : NULL;
    WELL(ringfold_reduce(comm, &value, place, 1, RINGFOLD_FLOAT64, RINGFOLD_PROD, 0));
    EXPECT(rank != 0 || product == (ranks == 3 ? 6 : ranks));

    one[0] = rank;
    WELL(ringfold_all_gather(comm, one, all, 1, RINGFOLD_INT32));
    for (int i = 0; i < ranks; i++) {
        EXPECT(all[i] == i);
    }
    WELL(ringfold_reduce_scatter(comm, all, part, 1, RINGFOLD_INT32, RINGFOLD_SUM));
    EXPECT(part[0] == rank * ranks);

    memset(all, 0, sizeof all);
    WELL(ringfold_gather(comm, one, rank == 0 ? all : NULL, 1, RINGFOLD_INT32, 0));
    EXPECT(rank != 0 || all[ranks - 1] == ranks - 1);
    WELL(ringfold_scatter(comm, rank == 0 ? all : NULL, part, 1, RINGFOLD_INT32, 0));
    EXPECT(part[0] == rank);

    int given[8], got[8];
    for (int i = 0; i < ranks; i++) {
        given[i] = 10 * rank + i;
    }
    WELL(ringfold_all_to_all(comm, given, got, 1, RINGFOLD_INT32));
    for (int i = 0; i < ranks; i++) {
        EXPECT(got[i] == 10 * i + rank);
    }
    WELL(ringfold_barrier(comm));
}

static void messages(void) {
    if (ranks < 2) {
        return;
    }
    int word = 40 + rank, from = -2;
    if (rank == 0) {
        WELL(ringfold_recv(comm, &word, 1, RINGFOLD_INT32, RINGFOLD_ANY_SOURCE, 7, &from));
        EXPECT(word == 41 && from == 1);
    } else if (rank == 1) {
        WELL(ringfold_send(comm, &word, 1, RINGFOLD_INT32, 0, 7));
    }
}

static void requests(void) {
    /* A list of counts: rank i gives i + 1 elements. */
    size_t counts[8], total = 0;
    for (int i = 0; i < ranks; i++) {
        counts[i] = (size_t)i + 1;
        total += counts[i];
    }
    int own[8], all[64] = {0};
    for (int i = 0; i <= rank; i++) {
        own[i] = 100 * rank + i;
    }
    ringfold_request_t request = {
        .size = sizeof request,
        .collective = RINGFOLD_ALL_GATHER,
        .dtype = RINGFOLD_INT32,
        .counts = counts,
        .input = own,
        .output = all,
        .timeout_s = 30,
        .algorithm = "ring",
    };
    WELL(ringfold_run(comm, &request, NULL, NULL, NULL));
    EXPECT(all[total - 1] == 100 * (ranks - 1) + ranks - 1);

    /* Counts for each pair: everyone gives rank i i elements. */
    size_t gives[8], gets[8];
    int from[64], into[64] = {0};
    for (int i = 0; i < ranks; i++) {
        gives[i] = (size_t)i;
        gets[i] = (size_t)rank;
    }
    for (int i = 0; i < 64; i++) {
        from[i] = rank;
    }
    ringfold_request_t pairs = {
        .size = sizeof pairs,
        .collective = RINGFOLD_ALL_TO_ALL,
        .dtype = RINGFOLD_INT32,
        .counts = gives,
        .output_counts = gets,
        .input = from,
        .output = into,
    };
    WELL(ringfold_run(comm, &pairs, NULL, NULL, NULL));
    for (int i = 0; i < ranks * rank; i++) {
        EXPECT(into[i] == i / rank);
    }

    float scaled = 3;
    ringfold_request_t weighted = {
        .size = sizeof weighted,
        .collective = RINGFOLD_ALL_REDUCE,
        .dtype = RINGFOLD_FLOAT32,
        .op = RINGFOLD_PREMUL_SUM,
        .factor = 0.5,
        .count = 1,
        .input = &scaled,
        .output = &scaled,
    };
    WELL(ringfold_run(comm, &weighted, NULL, NULL, NULL));
    EXPECT(scaled == 1.5f * (float)ranks);

    ringfold_request_t ring = {
        .size = sizeof ring,
        .collective = RINGFOLD_SENDRECV,
        .dtype = RINGFOLD_INT32,
        .count = 1,
        .input = own,
        .output = all,
    };
    WELL(ringfold_run(comm, &ring, NULL, NULL, NULL));
    EXPECT(all[0] == 100 * ((rank + ranks - 1) % ranks));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t called = PTHREAD_COND_INITIALIZER;

static void count_up(void *number) {
    pthread_mutex_lock(&lock);
    ++*(int *)number;
    pthread_cond_signal(&called);
    pthread_mutex_unlock(&lock);
}

static void works(void) {
    enum { CALLS = 3, ELEMENTS = 50000 };
    static float buffers[CALLS][ELEMENTS];
    ringfold_request_t group[CALLS];
    ringfold_work_t *started[CALLS];
    for (int i = 0; i < CALLS; i++) {
        for (int j = 0; j < ELEMENTS; j++) {
            buffers[i][j] = (float)i;
        }
        group[i] = (ringfold_request_t){
            .size = sizeof group[i],
            .collective = RINGFOLD_ALL_REDUCE,
            .dtype = RINGFOLD_FLOAT32,
            .op = RINGFOLD_SUM,
            .count = ELEMENTS,
            .input = buffers[i],
            .output = buffers[i],
        };
    }
    WELL(ringfold_start_group(comm, group, CALLS, started));
    int calls = 0;
    WELL(ringfold_when_done(started[0], count_up, &calls));
    WELL(ringfold_wait(started[0]));
    pthread_mutex_lock(&lock);
    while (calls == 0) {
        pthread_cond_wait(&called, &lock);
    }
    pthread_mutex_unlock(&lock);
    EXPECT(calls == 1);
    bool is_done = false;
    while (!is_done) {
        WELL(ringfold_wait_for(started[1], 0.01, &is_done));
    }
    EXPECT(ringfold_is_done(started[1]) && ringfold_source(started[1]) == -1);
    for (int i = 0; i < CALLS; i++) {
        ringfold_work_free(started[i]); /* waits for the last one */
        EXPECT(buffers[i][ELEMENTS - 1] == (float)(i * ranks));
    }
    WELL(ringfold_start_group(comm, NULL, 0, NULL));
}

static void memory(void) {
    ringfold_memory_t *shared;
    WELL(ringfold_alloc(comm, 1 << 16, &shared));
    unsigned char *bytes = ringfold_memory_address(shared);
    EXPECT(bytes[0] == 0 && bytes[(1 << 16) - 1] == 0);
    EXPECT(ringfold_memory_is_shared(shared) == (ranks > 1));
    bytes[0] = 1;
    WELL(ringfold_all_reduce(comm, bytes, bytes, 1 << 16, RINGFOLD_UINT8, RINGFOLD_SUM));
    EXPECT(bytes[0] == ranks);
    ringfold_memory_free(shared);

    int *own = malloc(1 << 20);
    own[7] = rank;
    ringfold_registration_t *registration;
    WELL(ringfold_register(comm, own, 1 << 20, &registration));
    WELL(ringfold_all_reduce(comm, own, own, 8, RINGFOLD_INT32, RINGFOLD_MAX));
    EXPECT(own[7] == ranks - 1);
    ringfold_registration_free(registration);
    EXPECT(own[7] == ranks - 1);
    free(own);
}

static void parts(void) {
    ringfold_comm_t *part = (ringfold_comm_t *)&part;
    WELL(ringfold_split(comm, rank == 0 ? RINGFOLD_NO_COLOR : 5, -rank, &part));
    EXPECT((part == NULL) == (rank == 0));
    if (part) {
        EXPECT(ringfold_world_size(part) == ranks - 1);
        EXPECT(ringfold_rank(part) == ranks - 1 - rank); /* the keys turn the order round */
        WELL(ringfold_close(part));
        WELL(ringfold_close(part));
        EXPECT(ringfold_barrier(part) == RINGFOLD_CLOSED);
        ringfold_free(part);
    }
}

/* Two ranks that are threads here, which pass on the address themselves. */
static char address[4096];
static pthread_barrier_t ready;

static void *joins(void *is_first) {
    ringfold_config_t *config;
    WELL(ringfold_config_new(&config));
    WELL(ringfold_config_set(config, "world_size", "2"));
    WELL(ringfold_config_set(config, "rank", is_first ? "0" : "1"));
    WELL(ringfold_config_set(config, "secret", "known to both"));
    WELL(ringfold_config_set(config, "timeout", "20.5"));
    ringfold_listener_t *listener = NULL;
    if (is_first) {
        WELL(ringfold_listener_open(NULL, &listener));
        snprintf(address, sizeof address, "%s", ringfold_listener_address(listener));
    }
    pthread_barrier_wait(&ready);
    if (!is_first) {
        WELL(ringfold_config_set(config, "address", address));
    }
    ringfold_comm_t *pair;
    WELL(ringfold_connect(config, listener, &pair));
    float two = 1;
    WELL(ringfold_all_reduce(pair, &two, &two, 1, RINGFOLD_FLOAT32, RINGFOLD_SUM));
    EXPECT(two == 2);
    if (is_first) {
        ringfold_comm_t *again;
        REFUSED(ringfold_connect(config, listener, &again), "used already");
    }
    WELL(ringfold_close(pair));
    ringfold_free(pair);
    ringfold_listener_free(listener);
    ringfold_config_free(config);
    return NULL;
}

static void listeners(void) {
    pthread_t threads[2];
    pthread_barrier_init(&ready, NULL, 2);
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, joins, i == 0 ? &ready : NULL);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void own_messages(void) {
    int32_t sent = 5, received = 0;
    const int self = ringfold_rank(comm);
    WELL(ringfold_send(comm, &sent, 1, RINGFOLD_INT32, self, 3));
    WELL(ringfold_recv(comm, &received, 1, RINGFOLD_INT32, self, 3, NULL));
    EXPECT(received == sent);
}

static void refusals(void) {
    int word = 0, *at = &word;
    const uint32_t type = RINGFOLD_INT32, sum = RINGFOLD_SUM;
    REFUSED(ringfold_all_reduce(NULL, at, at, 1, type, sum), "comm is NULL");
    REFUSED(ringfold_all_reduce(comm, NULL, at, 1, type, sum), "input is NULL");
    REFUSED(ringfold_all_reduce(comm, at, at, 1, 0, sum), "data type is not set");
    REFUSED(ringfold_all_reduce(comm, at, at, 1, 99, sum), "99");
    REFUSED(ringfold_all_reduce(comm, at, at, 1, type, 0), "operation is not set");
    REFUSED(ringfold_all_reduce(comm, at, at, (size_t)-1, type, sum), "bytes");
    REFUSED(ringfold_broadcast(comm, &word, 1, RINGFOLD_INT32, ranks), "root");
    REFUSED(ringfold_broadcast(comm, &word, 1, RINGFOLD_INT32, -1), "rank -1");
    REFUSED(ringfold_split(comm, -7, 0, &(ringfold_comm_t *){NULL}), "color");
    REFUSED(ringfold_init(NULL), "comm is NULL");
    REFUSED(ringfold_wait(NULL), "work is NULL");
    ringfold_request_t request = {.size = 4};
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL), "size");
    request.size = sizeof request + 8;
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL), "size");
    request = (ringfold_request_t){.size = sizeof request};
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL), "collective is not set");
    request.collective = RINGFOLD_BARRIER;
    request.timeout_s = NAN;
    REFUSED(ringfold_run(comm, &request, NULL, NULL, NULL), "timeout_s");

    ringfold_config_t *config;
    WELL(ringfold_config_new(&config));
    REFUSED(ringfold_config_set(config, "tiemout", "1"), "did you mean `timeout`");
    REFUSED(ringfold_config_set(config, "timeout", "soon"), "seconds");
    REFUSED(ringfold_config_set(config, "transport", "rmda"), "unknown transport");
    REFUSED(ringfold_config_set(config, "rank", "\xff"), "UTF-8");
    REFUSED(ringfold_config_set(NULL, "rank", "0"), "config is NULL");
    REFUSED(ringfold_config_set(config, "secret", " "), "is empty");
    REFUSED(ringfold_config_set(config, "secret", "x"), "can be guessed");
    /* No text has the secret, in any encoding or place. */
    REFUSED(ringfold_config_set(config, "secret", "MARKER\xff"), "UTF-8");
    EXPECT(!strstr(ringfold_error_message(), "MARKER"));
    REFUSED(ringfold_config_set(config, "MARKER", "secret"), "precede its value");
    EXPECT(!strstr(ringfold_error_message(), "MARKER"));
    WELL(ringfold_config_set(config, "tuner_config", "/nowhere/rules.toml"));
    ringfold_comm_t *none = NULL;
    EXPECT(ringfold_connect(config, NULL, &none) != RINGFOLD_OK && none == NULL);
    EXPECT(strstr(ringfold_error_message(), "/nowhere/rules.toml"));
    ringfold_config_free(config);

    int at_fault[2];
    EXPECT(ringfold_error_ranks(at_fault, 2) == 0);
    EXPECT(ringfold_fault(comm) == RINGFOLD_OK);
    EXPECT(!ringfold_is_fatal(RINGFOLD_OK) && ringfold_is_fatal(RINGFOLD_TIMEOUT));
    EXPECT(strcmp(ringfold_status_name(RINGFOLD_TIMEOUT), "RINGFOLD_TIMEOUT") == 0);
    EXPECT(strcmp(ringfold_status_name(-5), "unknown") == 0);

    /* Nothing of this is a handle. */
    ringfold_free(NULL);
    ringfold_work_free(NULL);
    ringfold_memory_free(NULL);
    ringfold_registration_free(NULL);
    ringfold_config_free(NULL);
    ringfold_listener_free(NULL);
    EXPECT(ringfold_rank(NULL) == -1 && ringfold_transport(NULL) == NULL);
    EXPECT(ringfold_is_done(NULL) && ringfold_source(NULL) == -1);
}

static void children(void) {
    pid_t child = fork();
    if (child == 0) {
        /* The communicator is the parent's. */
        bool is_refused = ringfold_barrier(comm) == RINGFOLD_UNSUPPORTED;
        ringfold_free(comm);
        _exit(is_refused ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    EXPECT(ringfold_abi_version() == RINGFOLD_ABI_VERSION);
    EXPECT(strchr(ringfold_version(), '.'));
    WELL(ringfold_init(&comm));
    rank = ringfold_rank(comm);
    ranks = ringfold_world_size(comm);
    EXPECT(ringfold_local_rank(comm) == rank && ringfold_local_size(comm) == ranks);
    EXPECT(ringfold_hosts(comm) == 1);
    EXPECT(strcmp(ringfold_transport(comm), ranks > 1 ? "shm" : "self") == 0);
    own_messages();
    refusals();
    collectives();
    messages();
    requests();
    works();
    memory();
    parts();
    listeners();
    children();
    WELL(ringfold_barrier(comm)); /* it has survived all of this */
    WELL(ringfold_close(comm));
    ringfold_free(comm);
    return 0;
}
