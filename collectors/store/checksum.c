#include "collectors/store/checksum.h"

#include <inttypes.h>
#include <zlib.h>

uint32_t keel_row_checksum(uint32_t sum, const void *bytes, size_t size) {
    return (uint32_t)crc32_z(sum, bytes, size);
}

uint32_t keel_row_checksum_join(uint32_t first, uint32_t second, size_t size) {
    return (uint32_t)crc32_combine(first, second, (z_off_t)size);
}

keel_status keel_row_checksum_fails(const char *file_path, const char *path, uint64_t row) {
    return keel_fail(KEEL_ERR_FORMAT, "%s: %s row %" PRIu64 " is damaged: its checksum is another", file_path, path,
                     row);
}

// As 1 to 65535, or 0 where nothing but zeros was added up.
static uint32_t fold(uint64_t sum) {
    return sum ? (uint32_t)((sum - 1) % 65535 + 1) : 0;
}

void keel_chunk_checksum(const unsigned char *bytes, size_t size, unsigned char sum[KEEL_CHUNK_CHECKSUM_BYTES]) {
    enum { WORDS = 1 << 20 }; // whose sums of sums stay within 64 bits
    uint64_t a = 0, b = 0;
    for (size_t at = 0; at < size;) {
        const size_t end = size - at > 2 * (size_t)WORDS ? at + 2 * (size_t)WORDS : size;
        for (; at + 1 < end; at += 2) {
            a += (uint64_t)bytes[at] << 8 | bytes[at + 1];
            b += a;
        }
        if (at < end) {
            a += (uint64_t)bytes[at++] << 8;
            b += a;
        }
        a = fold(a);
        b = fold(b);
    }
    const uint32_t both = (uint32_t)(b << 16 | a);
    for (int i = 0; i < KEEL_CHUNK_CHECKSUM_BYTES; i++) sum[i] = (unsigned char)(both >> 8 * i);
}
