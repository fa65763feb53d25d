#include "guarded_memory.h"

#include "cmocka_c11.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 0xa5 };

typedef struct guarded_block {
    uint8_t *map;
    size_t map_bytes;
    uint8_t *data; /* [map + page, data) holds the canary */
} guarded_block;

static guarded_block *blocks;
static size_t num_blocks, max_blocks;

static size_t system_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Maps `bytes`, rounded up to pages, between two pages without any access. */
static guarded_block *map_block(size_t bytes)
{
    size_t page = system_page();
    size_t inner = (bytes + page - 1) / page * page;
    if (num_blocks == max_blocks) {
        max_blocks = max_blocks == 0 ? 256 : 2 * max_blocks;
        blocks = realloc(blocks, max_blocks * sizeof *blocks);
        assert_non_null(blocks);
    }
    guarded_block *block = &blocks[num_blocks];
    block->map_bytes = inner + 2 * page;
    block->map = mmap(NULL, block->map_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block->map == MAP_FAILED) {
        fail_msg("no address space for %zu bytes", block->map_bytes);
    }
    block->data = block->map + page;
    if (inner > 0) {
        assert_int_equal(mprotect(block->data, inner, PROT_READ | PROT_WRITE), 0);
    }
    num_blocks++;
    return block;
}

void *guarded_alloc(size_t bytes, size_t alignment)
{
    guarded_block *block = map_block(bytes);
    uint8_t *begin = block->data, *end = block->map + block->map_bytes - system_page();
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    block->data = end - rounded;
    memset(begin, CANARY, (size_t)(block->data - begin));
    memset(block->data, 0xff, rounded);
    return block->data;
}

void *guarded_sparse_alloc(size_t bytes)
{
    return map_block(bytes)->data;
}

size_t guarded_mark(void)
{
    return num_blocks;
}

static void check_canary(const guarded_block *block)
{
    for (const uint8_t *byte = block->map + system_page(); byte < block->data; byte++) {
        if (*byte != CANARY) {
            fail_msg("%td bytes before a buffer were overwritten with 0x%02x", block->data - byte,
                     *byte);
        }
    }
}

void guarded_release(size_t mark)
{
    for (size_t i = mark; i < num_blocks; i++) {
        check_canary(&blocks[i]);
    }
    guarded_discard(mark);
}

void guarded_discard(size_t mark)
{
    while (num_blocks > mark) {
        num_blocks--;
        munmap(blocks[num_blocks].map, blocks[num_blocks].map_bytes);
    }
    if (num_blocks == 0) {
        free(blocks);
        blocks = NULL;
        max_blocks = 0;
    }
}
