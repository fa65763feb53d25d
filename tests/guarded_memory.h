/*
 * Memory between two inaccessible pages, so that a read or write outside a buffer faults at once.
 * Blocks form a stack: take a mark, allocate, release down to the mark.
 */
#ifndef MLA_TESTS_GUARDED_MEMORY_H
#define MLA_TESTS_GUARDED_MEMORY_H

#include <stddef.h>

/*
 * `bytes` bytes whose end touches the inaccessible page (up to the alignment, a power of two), all
 * 0xFF. The bytes between the front page and the block hold a canary that the release checks.
 * Never NULL; 0 bytes give a pointer that must not be read.
 */
void *guarded_alloc(size_t bytes, size_t alignment);

/* Zero memory that costs nothing until it is touched, for pools of many GB; page-aligned. */
void *guarded_sparse_alloc(size_t bytes);

size_t guarded_mark(void);

/* Frees every block after the mark. Fails the running test when a canary was overwritten. */
void guarded_release(size_t mark);

/* The same without the check, for what a failed test left behind. */
void guarded_discard(size_t mark);

#endif
