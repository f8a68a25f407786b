/* Two ranks do what their argument says with handles, threads, handlers and their own end. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <ringfold.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static ringfold_comm_t *comm;
static int rank;
static const char *program, *chosen;
static atomic_int mistakes;

#define EXPECT(call, expected)                                                                     \
    do {                                                                                           \
        ringfold_status_t status = (call);                                                         \
        if (status != (expected)) {                                                                \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, ringfold_status_name(status),           \
                    status == RINGFOLD_OK ? "" : ringfold_error_message());                        \
            mistakes++;                                                                            \
        }                                                                                          \
    } while (0)

#define HOLDS(claim)                                                                               \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #claim);                            \
            mistakes++;                                                                            \
        }                                                                                          \
    } while (0)

static float word = 1;
static _Alignas(4096) char buffer[1 << 16];

/* Waits for the other rank by files beside the program: a rank that ends the job, as it may after a
 * barrier, would end that barrier of the other one, too. */
static void meet(void) {
    static int times;
    char path[4096];
    times++;
    snprintf(path, sizeof path, "%s.%s.%d.%d", program, chosen, times, rank);
    HOLDS(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)) == 0);
    snprintf(path, sizeof path, "%s.%s.%d.%d", program, chosen, times, 1 - rank);
    while (access(path, F_OK) != 0) {
        usleep(1000);
    }
}

/* A receive of a message that never comes. */
static ringfold_request_t in_vain(void) {
    ringfold_request_t request = {
        .size = sizeof request,
        .collective = RINGFOLD_RECV,
        .dtype = RINGFOLD_FLOAT32,
        .root = 1 - rank,
        .count = 1,
        .output = &word,
        .tag = 99,
    };
    return request;
}

/* Both ranks have begun it when it returns. */
static ringfold_work_t *endless(void) {
    ringfold_request_t request = in_vain();
    ringfold_work_t *work = NULL;
    EXPECT(ringfold_start(comm, &request, &work), RINGFOLD_OK);
    meet();
    return work;
}

static void *barriers(void *nothing) {
    for (int i = 0; i < 200; i++) {
        EXPECT(ringfold_barrier(comm), RINGFOLD_OK);
    }
    /* A failure's text belongs to its thread. */
    HOLDS(ringfold_error_message()[0] == '\0');
    EXPECT(ringfold_barrier(NULL), RINGFOLD_INVALID_ARGUMENT);
    return nothing;
}

static void threads(void) {
    pthread_t four[4];
    for (int i = 0; i < 4; i++) {
        pthread_create(&four[i], NULL, barriers, NULL);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(four[i], NULL);
    }
    HOLDS(ringfold_error_message()[0] == '\0');
    EXPECT(ringfold_close(comm), RINGFOLD_OK);
    ringfold_free(comm);
}

/* What is left after its communicator is freed: works know how they ended, memory stays. */
static void order(void) {
    ringfold_memory_t *memory = NULL;
    ringfold_registration_t *registration = NULL;
    EXPECT(ringfold_alloc(comm, 100, &memory), RINGFOLD_OK);
    EXPECT(ringfold_register(comm, buffer, sizeof buffer, &registration), RINGFOLD_OK);
    EXPECT(ringfold_barrier(comm), RINGFOLD_OK);
    ringfold_work_t *work = endless();
    ringfold_free(comm);
    ringfold_status_t status = ringfold_wait(work);
    HOLDS(status == RINGFOLD_ABORTED || status == RINGFOLD_PEER_FAILED);
    HOLDS(ringfold_is_done(work));
    ringfold_work_free(work);
    strcpy(ringfold_memory_address(memory), "still there");
    strcpy(buffer, "here, too");
    ringfold_memory_free(memory);
    ringfold_registration_free(registration);
    HOLDS(strcmp(buffer, "here, too") == 0);
}

static void sizes(void) {
    ringfold_memory_t *memory = NULL;
    ringfold_registration_t *registration = NULL;
    void *unmapped = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const size_t counts[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 46};
    for (int i = 0; i < 3; i++) {
        HOLDS(ringfold_alloc(comm, counts[i], &memory) != RINGFOLD_OK);
        HOLDS(memory == NULL);
        HOLDS(ringfold_register(comm, buffer, counts[i], &registration) != RINGFOLD_OK);
        HOLDS(registration == NULL);
    }
    HOLDS(ringfold_register(comm, unmapped, 8192, &registration) != RINGFOLD_OK);
    munmap(unmapped, 8192);
    HOLDS(ringfold_register(comm, unmapped, 8192, &registration) != RINGFOLD_OK);
    EXPECT(ringfold_barrier(comm), RINGFOLD_OK);
    EXPECT(ringfold_close(comm), RINGFOLD_OK);
    ringfold_free(comm);
}

static ringfold_work_t *own;
static atomic_int aborted, called;
static pthread_t main_thread;

static void frees_all(void *argument) {
    (void)argument;
    /* In the main thread if the peer has aborted before, so that the call was done. */
    while (!aborted && !pthread_equal(pthread_self(), main_thread)) {
        usleep(1000);
    }
    ringfold_work_free(own);
    ringfold_free(comm);
    called = 1;
}

/* A callback may free what it was called for, and the communicator. */
static void callback(void) {
    own = endless();
    main_thread = pthread_self();
    EXPECT(ringfold_when_done(own, frees_all, NULL), RINGFOLD_OK);
    if (!called) {
        EXPECT(ringfold_abort(comm, "enough"), RINGFOLD_OK);
    }
    aborted = 1;
    while (!called) {
        usleep(1000);
    }
}

static void *receives(void *started) {
    ringfold_request_t request = in_vain();
    request.timeout_s = 0.5;
    *(atomic_int *)started = 1;
    ringfold_run(comm, &request, NULL, NULL, NULL);
    pthread_testcancel();
    return NULL;
}

/* A thread that is cancelled in a call ends after the call. */
static void cancel(void) {
    pthread_t thread;
    atomic_int started = 0;
    void *result = NULL;
    pthread_create(&thread, NULL, receives, &started);
    while (!started) {
        usleep(1000);
    }
    pthread_cancel(thread);
    pthread_join(thread, &result);
    HOLDS(result == PTHREAD_CANCELED);
    HOLDS(ringfold_fault(comm) != RINGFOLD_OK);
    ringfold_free(comm);
}

static void *ends_the_process(void *nothing) {
    (void)nothing;
    exit(mistakes);
}

/* The process ends while another thread waits. */
static void end_elsewhere(void) {
    pthread_t thread;
    ringfold_work_t *work = endless();
    pthread_create(&thread, NULL, ends_the_process, NULL);
    ringfold_wait(work);
    pthread_join(thread, NULL);
}

static void lose_a_peer(void) {
    ringfold_work_t *work = endless();
    if (rank == 1) {
        raise(SIGKILL);
    }
    EXPECT(ringfold_wait(work), RINGFOLD_PEER_FAILED);
    EXPECT(ringfold_barrier(comm), RINGFOLD_PEER_FAILED);
    EXPECT(ringfold_close(comm), RINGFOLD_OK);
    EXPECT(ringfold_barrier(comm), RINGFOLD_CLOSED);
    ringfold_work_free(work);
    ringfold_free(comm);
}

/* A child that ends as programs do, with its parent's threads gone. */
static void fork_a_child(void) {
    endless();
    pid_t child = fork();
    if (child == 0) {
        exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    HOLDS(status == 0);
    EXPECT(ringfold_barrier(comm), RINGFOLD_OK);
    meet();
    ringfold_free(comm);
}

static void just_return(void) {
    endless();
}

/* What a handler may do: ask who it is. */
static void handler(int number) {
    (void)number;
    HOLDS(ringfold_rank(comm) == rank);
    called++;
}

static void signals(void) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, barriers, NULL);
    for (int i = 0; i < 200; i++) {
        pthread_kill(thread, SIGUSR1);
        usleep(100);
    }
    pthread_join(thread, NULL);
    EXPECT(ringfold_close(comm), RINGFOLD_OK);
    ringfold_free(comm);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"threads", threads}, {"order", order},       {"sizes", sizes},
    {"callback", callback}, {"cancel", cancel},   {"signals", signals},
    {"return", just_return}, {"exit", end_elsewhere}, {"kill", lose_a_peer},
    {"fork", fork_a_child},
};

int main(int count, char **arguments) {
    if (ringfold_init(&comm) != RINGFOLD_OK) {
        fprintf(stderr, "%s\n", ringfold_error_message());
        return 2;
    }
    rank = ringfold_rank(comm);
    program = arguments[0];
    chosen = count > 1 ? arguments[1] : "";
    EXPECT(ringfold_barrier(comm), RINGFOLD_OK);
    meet();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(chosen, cases[i].name) == 0) {
            cases[i].run();
            return mistakes;
        }
    }
    return 2;
}
