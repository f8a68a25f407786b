/* A program that loads the library in a thread, and gives it back with a communicator open. */
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <ringfold.h>
#include <stdio.h>

#define LIBRARY "libringfold.so.0"

typedef ringfold_status_t (*init_t)(ringfold_comm_t **);
typedef ringfold_status_t (*call_t)(const ringfold_comm_t *);
typedef void (*free_t)(ringfold_comm_t *);

static ringfold_comm_t *comm;
static const char *failed = "nothing";

static void *loads(void *done) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        failed = dlerror();
        return NULL;
    }
    init_t init;
    call_t barrier;
    *(void **)&init = dlsym(library, "ringfold_init");
    *(void **)&barrier = dlsym(library, "ringfold_barrier");
    if (init(&comm) != RINGFOLD_OK || barrier(comm) != RINGFOLD_OK) {
        failed = "a call";
        return NULL;
    }
    /* A failure leaves a text in this thread's memory, which goes with the thread. */
    barrier(NULL);
    dlclose(library);
    return done;
}

int main(void) {
    pthread_t thread;
    void *is_good = NULL;
    pthread_create(&thread, NULL, loads, &comm);
    pthread_join(thread, &is_good);
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    if (is_good == NULL || library == NULL) {
        fprintf(stderr, "failed: %s; library: %p\n", failed, library);
        return 1;
    }
    call_t barrier, close;
    free_t free_comm;
    *(void **)&barrier = dlsym(library, "ringfold_barrier");
    *(void **)&close = dlsym(library, "ringfold_close");
    *(void **)&free_comm = dlsym(library, "ringfold_free");
    int mistakes = barrier(comm) != RINGFOLD_OK;
    mistakes += close(comm) != RINGFOLD_OK;
    free_comm(comm);
    dlclose(library);
    return mistakes;
}
