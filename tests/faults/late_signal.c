// Preloaded into a program: SIGTERM comes while the trained model is put into its place, after the last update.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

__attribute__((visibility("default"))) int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    if (strstr(to, "/model.safetensors")) {
        kill(getpid(), SIGTERM);
        usleep(300000); // it is taken by now
    }
    if (!real) {
        void *found = dlsym(RTLD_NEXT, "rename");
        memcpy(&real, &found, sizeof real);
    }
    return real(from, to);
}
