// Runs a fuzz target over every file of the folders given, so that a corpus is a test without a fuzzer.
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void die(const char *path) {
    fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
    exit(2);
}

static void replay_file(const char *path, size_t size) {
    // An own allocation of exactly the size, so that the sanitizer sees one byte too far.
    uint8_t *data = malloc(size ? size : 1);
    FILE *file = fopen(path, "rb");
    if (!data || !file || fread(data, 1, size, file) != size) die(path);
    fclose(file);
    printf("%s\n", path);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

static size_t replay_folder(const char *folder) {
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort);
    if (count < 0) die(folder);
    size_t files = 0;
    for (int i = 0; i < count; i++) {
        char path[4096];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        free(entries[i]);
        if (stat(path, &info) != 0) die(path);
        if (!S_ISREG(info.st_mode)) continue;
        replay_file(path, (size_t)info.st_size);
        files++;
    }
    free(entries);
    return files;
}

int main(int argc, char **argv) {
    size_t files = 0;
    for (int i = 1; i < argc; i++) files += replay_folder(argv[i]);
    if (files == 0) {
        fprintf(stderr, "replay: no files\n");
        return 2;
    }
    printf("%zu inputs\n", files);
    return 0;
}
